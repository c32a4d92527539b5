import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.MapMessage;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Session;
import javax.jms.Topic;
import javax.jms.XAConnection;
import javax.jms.XASession;
import javax.sql.XADataSource;
import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.ActiveMQXAConnectionFactory;
import org.apache.activemq.command.XATransactionId;
import org.postgresql.ds.PGSimpleDataSource;
import org.postgresql.xa.PGXADataSource;

/** Publishers and durable topic subscribers of ActiveMQ. clients/base.py describes how they are told what to do. */
public final class Jms {
    static final String TOPIC = "quote";
    static final long LINGER = 300;
    static JsonNode config;
    static JsonNode plan;

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        config = json.readTree(lines.readLine());
        plan = config.get("plan");
        boolean publishes = config.get("role").asText().equals("publisher");
        List<Publisher> publishers = new ArrayList<>();
        List<Subscriber> subscribers = new ArrayList<>();
        if (publishes) {
            for (JsonNode index : config.get("indexes")) publishers.add(new Publisher(index.asInt()));
        } else {
            for (JsonNode index : config.get("subscribers")) subscribers.add(subscriber(index.asInt()));
            for (Subscriber one : subscribers) one.start();
        }
        System.out.println("{\"ready\": true}");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode command = json.readTree(line);
            if (command.get("do").asText().equals("stop")) break;
            if (command.get("do").asText().equals("begin")) {
                activate(true);
                continue;
            }
            System.out.println(publishes ? publish(publishers, command) : collect(subscribers, command));
            activate(false);
        }
        // Subscriptions are not taken back, because the broker and its database are removed after the plan.
        Runtime.getRuntime().halt(0);
    }

    private static boolean active;

    /** Pauses subscribers between rounds, because they would slow down the system whose turn it is. */
    static synchronized void activate(boolean round) {
        active = round;
        Jms.class.notifyAll();
    }

    static synchronized void awaitRound() throws InterruptedException {
        while (!active) Jms.class.wait();
    }

    static double now() {
        Instant now = Instant.now();
        return now.getEpochSecond() + now.getNano() / 1e9;
    }

    // ------------------------------------------------------------ records

    /** Event numbers and times of one subscriber. */
    static final class Seen {
        private final List<long[]> records = new ArrayList<>();
        private int wanted = Integer.MAX_VALUE;

        synchronized void add(long number) {
            records.add(new long[] {number, Double.doubleToRawLongBits(now())});
            if (records.size() >= wanted) notifyAll();
        }

        synchronized void until(int count, long deadline) throws InterruptedException {
            wanted = count;
            for (long left = deadline - System.currentTimeMillis(); records.size() < count && left > 0;
                    left = deadline - System.currentTimeMillis()) wait(left);
        }

        synchronized ByteBuffer take(int index) {
            ByteBuffer taken = ByteBuffer.allocate(16 + 16 * records.size()).order(ByteOrder.LITTLE_ENDIAN);
            taken.putLong(index).putLong(records.size());
            for (long[] record : records) taken.putLong(record[0]);
            for (long[] record : records) taken.putLong(record[1]);
            records.clear();
            wanted = Integer.MAX_VALUE;
            return taken.flip();
        }
    }

    static void write(String file, List<ByteBuffer> buffers) throws Exception {
        try (var channel = new RandomAccessFile(file, "rw").getChannel()) {
            for (ByteBuffer buffer : buffers) while (buffer.hasRemaining()) channel.write(buffer);
        }
    }

    // ------------------------------------------------------------ publishers

    static String publish(List<Publisher> publishers, JsonNode command) throws Exception {
        double began = now();
        AtomicReference<Exception> failure = new AtomicReference<>();
        List<Thread> threads = new ArrayList<>();
        for (Publisher one : publishers) {
            Thread thread = new Thread(() -> {
                try {
                    one.run(command, began);
                } catch (Exception error) {
                    failure.set(error);
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) thread.join();
        if (failure.get() != null) throw failure.get();
        double ended = now();
        Seen all = new Seen();
        for (Publisher one : publishers) synchronized (one.sent) { all.records.addAll(one.sent.records); one.sent.records.clear(); }
        int count = all.records.size();
        Files.deleteIfExists(Path.of(command.get("file").asText()));
        write(command.get("file").asText(), List.of(all.take(0)));
        return "{\"published\": " + count + ", \"began\": " + began + ", \"ended\": " + ended + "}";
    }

    static final class Publisher {
        final Seen sent = new Seen();
        private final int index;
        private final int together = plan.get("together").asInt();
        private final Session session;
        private final MessageProducer producer;
        private final PreparedStatement lookup;

        Publisher(int index) throws Exception {
            this.index = index;
            Connection connection = new ActiveMQConnectionFactory(config.get("broker").asText()).createConnection();
            boolean stores = plan.get("produce").asBoolean() && index == 0;
            if (stores) connection.setClientID("nobody");
            session = connection.createSession(together > 1, Session.AUTO_ACKNOWLEDGE);
            producer = session.createProducer(session.createTopic(TOPIC));
            producer.setDeliveryMode(DeliveryMode.PERSISTENT);
            // Without a durable subscription nothing would be stored.
            if (stores) session.createDurableSubscriber(session.createTopic(TOPIC), "s0").close();
            connection.start();
            lookup = plan.get("rival").asText().equals("property")
                ? database().prepareStatement("select string_agg(portfolio_id::text, ',') from portfolios where symbol = ?")
                : null;
        }

        void run(JsonNode command, double began) throws Exception {
            long first = command.get("first").asLong();
            int step = config.get("publishers").asInt();
            double rate = command.hasNonNull("rate") ? command.get("rate").asDouble() : 0;
            int uncommitted = 0;
            for (long n = first + index; n < first + command.get("count").asLong(); n += step) {
                if (rate > 0) {
                    long wait = (long) ((began + (n - first) / rate - now()) * 1000);
                    if (wait > 0) Thread.sleep(wait);
                }
                sent.add(n);
                producer.send(message(n));
                if (together > 1 && ++uncommitted == together) {
                    session.commit();
                    uncommitted = 0;
                }
            }
            if (uncommitted > 0) session.commit();
        }

        private Message message(long n) throws Exception {
            String symbol = "S" + n % plan.get("symbols").asLong();
            MapMessage message = session.createMapMessage();
            message.setLong("n", n);
            message.setString("symbol", symbol);
            message.setLong("price", n % 1000);
            message.setLong("volume", n);
            if (plan.get("filters").asText().equals("symbol")) message.setStringProperty("symbol", symbol);
            if (lookup != null) {
                lookup.setString(1, symbol);
                try (ResultSet rows = lookup.executeQuery()) {
                    rows.next();
                    message.setStringProperty("portfolios", "," + rows.getString(1) + ",");
                }
            }
            return message;
        }
    }

    // ------------------------------------------------------------ subscribers

    static String collect(List<Subscriber> subscribers, JsonNode command) throws Exception {
        long deadline = System.currentTimeMillis() + (long) (command.get("timeout").asDouble() * 1000);
        for (int i = 0; i < subscribers.size(); i++) {
            if (subscribers.get(i).failure != null) throw subscribers.get(i).failure;
            subscribers.get(i).seen.until(command.get("expect").get(i).asInt(), deadline);
        }
        Thread.sleep(LINGER);
        List<ByteBuffer> taken = new ArrayList<>();
        StringBuilder counts = new StringBuilder();
        for (Subscriber one : subscribers) {
            if (one.failure != null) throw one.failure;
            taken.add(one.seen.take(one.index));
            counts.append(counts.length() > 0 ? ", " : "").append((taken.get(taken.size() - 1).limit() - 16) / 16);
        }
        Files.deleteIfExists(Path.of(command.get("file").asText()));
        write(command.get("file").asText(), taken);
        return "{\"received\": [" + counts + "]}";
    }

    static java.sql.Connection database() throws Exception {
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setUrl(config.get("jdbc").asText());
        return source.getConnection(config.get("user").asText(), config.get("password").asText());
    }

    static String selector(int index) {
        if (plan.get("rival").asText().equals("property"))
            return "portfolios LIKE '%," + plan.get("portfolios").get(index).asInt() + ",%'";
        return plan.get("filters").asText().equals("symbol") ? "symbol = 'S" + index % plan.get("symbols").asInt() + "'" : null;
    }

    static Subscriber subscriber(int index) throws Exception {
        String consume = plan.get("consume").asText();
        if (consume.equals("xa")) return new Distributed(index);
        return consume.equals("receive") ? new Receiving(index) : new Storing(index, consume.equals("idempotent"));
    }

    /** One durable subscription with a connection of its own. */
    abstract static class Subscriber extends Thread {
        final int index;
        final Seen seen = new Seen();
        final int batch = plan.get("batch").asInt();
        volatile Exception failure;

        Subscriber(int index) {
            this.index = index;
            setDaemon(true);
        }

        @Override
        public void run() {
            try {
                while (true) {
                    awaitRound();
                    consume();
                }
            } catch (Exception error) {
                error.printStackTrace();
                failure = error;
            }
        }

        /** Receives at most a batch, does the work, and acknowledges. */
        abstract void consume() throws Exception;

        MessageConsumer subscribe(Connection connection, Session session) throws Exception {
            Topic topic = session.createTopic(TOPIC);
            MessageConsumer consumer = session.createDurableSubscriber(topic, "s" + index, selector(index), false);
            connection.start();
            return consumer;
        }

        List<Message> take(MessageConsumer consumer) throws Exception {
            List<Message> taken = new ArrayList<>();
            for (Message next = consumer.receive(500); next != null; next = taken.size() < batch ? consumer.receiveNoWait() : null)
                taken.add(next);
            return taken;
        }
    }

    /** Receives events, and compares them with the stored portfolios, which the broker cannot read. */
    static class Receiving extends Subscriber {
        final MessageConsumer consumer;
        private final PreparedStatement lookup;

        Receiving(int index) throws Exception {
            super(index);
            Connection connection = new ActiveMQConnectionFactory(config.get("broker").asText()).createConnection();
            connection.setClientID("c" + index);
            consumer = subscribe(connection, connection.createSession(false, Session.CLIENT_ACKNOWLEDGE));
            lookup = plan.get("rival").asText().equals("lookup")
                ? database().prepareStatement("select 1 from portfolios where portfolio_id = ? and symbol = ?")
                : null;
        }

        @Override
        void consume() throws Exception {
            List<Message> taken = take(consumer);
            List<Message> wanted = new ArrayList<>();
            for (Message message : taken) if (matches((MapMessage) message)) wanted.add(message);
            if (!taken.isEmpty()) taken.get(taken.size() - 1).acknowledge();
            for (Message message : wanted) seen.add(((MapMessage) message).getLong("n"));
        }

        private boolean matches(MapMessage message) throws Exception {
            if (lookup == null) return true;
            lookup.setInt(1, plan.get("portfolios").get(index).asInt());
            lookup.setString(2, message.getString("symbol"));
            try (ResultSet rows = lookup.executeQuery()) {
                return rows.next();
            }
        }
    }

    /** Inserts into the application's table, commits, then acknowledges. `idempotent`: an event that comes again changes nothing. */
    static final class Storing extends Receiving {
        private final java.sql.Connection connection = database();
        private final PreparedStatement insert;

        Storing(int index, boolean idempotent) throws Exception {
            super(index);
            connection.setAutoCommit(false);
            insert = insertion(connection, idempotent ? " on conflict do nothing" : "");
        }

        @Override
        void consume() throws Exception {
            List<Message> taken = take(consumer);
            if (taken.isEmpty()) return;
            store(insert, index, taken);
            connection.commit();
            taken.get(taken.size() - 1).acknowledge();
            for (Message message : taken) seen.add(((MapMessage) message).getLong("n"));
        }
    }

    static PreparedStatement insertion(java.sql.Connection connection, String ending) throws Exception {
        return connection.prepareStatement(
            "insert into handled (subscriber, n, symbol, price, volume) values (?, ?, ?, ?, ?)" + ending);
    }

    static void store(PreparedStatement insert, int index, List<Message> messages) throws Exception {
        for (Message one : messages) {
            MapMessage message = (MapMessage) one;
            insert.setInt(1, index);
            insert.setLong(2, message.getLong("n"));
            insert.setString(3, message.getString("symbol"));
            insert.setBigDecimal(4, java.math.BigDecimal.valueOf(message.getLong("price")));
            insert.setLong(5, message.getLong("volume"));
            insert.addBatch();
        }
        insert.executeBatch();
    }

    /** Makes both sides one distributed transaction: two prepares, the decision forced to disk, two commits. */
    static final class Distributed extends Subscriber {
        private static final AtomicInteger NUMBERS = new AtomicInteger();
        private static RandomAccessFile decisions;
        private final MessageConsumer consumer;
        private final XAResource queue;
        private final XAResource table;
        private final PreparedStatement insert;

        Distributed(int index) throws Exception {
            super(index);
            XAConnection connection = new ActiveMQXAConnectionFactory(config.get("broker").asText()).createXAConnection();
            connection.setClientID("c" + index);
            XASession session = connection.createXASession();
            consumer = subscribe(connection, session);
            queue = session.getXAResource();
            PGXADataSource source = new PGXADataSource();
            source.setUrl(config.get("jdbc").asText());
            var pair = source.getXAConnection(config.get("user").asText(), config.get("password").asText());
            table = pair.getXAResource();
            insert = insertion(pair.getConnection(), "");
        }

        @Override
        void consume() throws Exception {
            Xid xid = next();
            queue.start(xid, XAResource.TMNOFLAGS);
            List<Message> taken = take(consumer);
            if (taken.isEmpty()) {
                queue.end(xid, XAResource.TMSUCCESS);
                queue.rollback(xid);
                return;
            }
            table.start(xid, XAResource.TMNOFLAGS);
            store(insert, index, taken);
            table.end(xid, XAResource.TMSUCCESS);
            queue.end(xid, XAResource.TMSUCCESS);
            table.prepare(xid);
            queue.prepare(xid);
            decide(xid);
            table.commit(xid, false);
            queue.commit(xid, false);
            for (Message message : taken) seen.add(((MapMessage) message).getLong("n"));
        }

        private Xid next() {
            byte[] global = ("field-" + ProcessHandle.current().pid() + "-" + index + "-" + NUMBERS.incrementAndGet()).getBytes();
            XATransactionId xid = new XATransactionId();
            xid.setFormatId(1);
            xid.setGlobalTransactionId(global);
            xid.setBranchQualifier(new byte[] {1});
            return xid;
        }

        private static synchronized void decide(Xid xid) throws Exception {
            if (decisions == null) {
                Path file = Files.createTempFile("field", ".log");
                decisions = new RandomAccessFile(file.toFile(), "rw");
                Files.delete(file);
            }
            decisions.write(xid.getGlobalTransactionId());
            decisions.getFD().sync();
        }
    }
}
