import java.io.File;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.store.jdbc.JDBCPersistenceAdapter;
import org.apache.activemq.store.jdbc.adapter.PostgresqlJDBCAdapter;
import org.apache.commons.dbcp2.BasicDataSource;

/**
 * ActiveMQ with its JDBC store in PostgreSQL: `Broker directory port jdbc-url user password [stomp-port]`.
 *
 * Statements stay prepared, as the documentation of the store advises. All other settings are the defaults.
 */
public final class Broker {
    public static void main(String[] arguments) throws Exception {
        BasicDataSource pool = new BasicDataSource();
        pool.setDriverClassName("org.postgresql.Driver");
        pool.setUrl(arguments[2]);
        pool.setUsername(arguments[3]);
        pool.setPassword(arguments[4]);
        pool.setMaxTotal(200);
        pool.setPoolPreparedStatements(true);

        JDBCPersistenceAdapter store = new JDBCPersistenceAdapter();
        store.setDataSource(pool);
        store.setAdapter(new PostgresqlJDBCAdapter());
        // The lock keeps out a second broker. This database has none, so it would only cost a connection.
        store.setUseLock(false);

        BrokerService broker = new BrokerService();
        broker.setBrokerName("field");
        broker.setUseJmx(false);
        broker.setPersistent(true);
        broker.setDataDirectoryFile(new File(arguments[0]));
        broker.setPersistenceAdapter(store);
        broker.addConnector("tcp://127.0.0.1:" + arguments[1] + "?maximumConnections=1000");
        if (arguments.length > 5) {
            broker.addConnector("stomp://127.0.0.1:" + arguments[5] + "?maximumConnections=1000");
        }
        broker.start();
        broker.waitUntilStopped();
    }
}
