// Publishers and workers of pg-boss; they are told what to do as clients/base.py describes.
"use strict";

const fs = require("fs");
const readline = require("readline");
const { createRequire } = require("module");

const LINGER = 300;
const now = () => (performance.timeOrigin + performance.now()) / 1000;
const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const say = (what) => process.stdout.write(JSON.stringify(what) + "\n");

class Seen {
    constructor(index) {
        this.index = index;
        this.numbers = [];
        this.times = [];
        this.refused = new Set();
    }

    add(number) {
        this.numbers.push(number);
        this.times.push(now());
    }

    refuse(number) {
        if (this.refused.has(number)) return false;
        this.refused.add(number);
        return true;
    }

    take() {
        const count = this.numbers.length;
        const taken = Buffer.alloc(16 + 16 * count);
        taken.writeBigInt64LE(BigInt(this.index), 0);
        taken.writeBigInt64LE(BigInt(count), 8);
        this.numbers.forEach((number, i) => taken.writeBigInt64LE(BigInt(number), 16 + 8 * i));
        this.times.forEach((time, i) => taken.writeDoubleLE(time, 16 + 8 * count + 8 * i));
        this.numbers = [];
        this.times = [];
        return taken;
    }
}

function topic(plan, number) {
    return plan.filters === "symbol" ? `S${number % plan.symbols}` : "quote";
}

async function publish(boss, config, command) {
    const { plan, indexes, publishers } = config;
    const sent = new Seen(0);
    const began = now();
    await Promise.all(indexes.map(async (index) => {
        let chunk = [];
        for (let n = command.first + index; n < command.first + command.count; n += publishers) {
            if (command.rate) {
                const wait = (began + (n - command.first) / command.rate - now()) * 1000;
                if (wait > 0) await sleep(wait);
            }
            sent.add(n);
            chunk.push(n);
            if (chunk.length >= plan.together) {
                await send(boss, plan, chunk);
                chunk = [];
            }
        }
        if (chunk.length) await send(boss, plan, chunk);
    }));
    const ended = now();
    const published = sent.numbers.length;
    fs.writeFileSync(command.file, sent.take());
    return { published, began, ended };
}

async function send(boss, plan, numbers) {
    const quotes = numbers.map((n) => ({ n, symbol: `S${n % plan.symbols}`, price: n % 1000, volume: n }));
    if (quotes.length === 1) {
        await boss.publish(topic(plan, quotes[0].n), quotes[0]);
        return;
    }
    const jobs = [];
    for (const data of quotes) {
        for (let k = 0; k < plan.subscribers; k++) {
            if (plan.filters !== "symbol" || data.n % plan.symbols === k % plan.symbols) jobs.push({ name: `c${k}`, data });
        }
    }
    await boss.insert(jobs);
}

async function collect(seen, command) {
    const deadline = now() + command.timeout;
    while (now() < deadline && !seen.every((one, i) => one.numbers.length >= command.expect[i])) await sleep(10);
    await sleep(LINGER);
    const received = seen.map((one) => one.numbers.length);
    fs.writeFileSync(command.file, Buffer.concat(seen.map((one) => one.take())));
    return { received };
}

async function subscribe(boss, plan, seen) {
    for (const one of seen) {
        const name = `c${one.index}`;
        await boss.createQueue(name, { retryLimit: 5, retryDelay: 0 });
        await boss.subscribe(plan.filters === "symbol" ? topic(plan, one.index) : "quote", name);
    }
}

async function begin(boss, plan, seen) {
    for (const one of seen) {
        const options = { batchSize: plan.batch, pollingIntervalSeconds: plan.eager ? 0.5 : 2 };
        await boss.work(`c${one.index}`, options, async (jobs) => {
            // A batch fails as a whole.
            if (plan.fail_first && jobs.filter((job) => one.refuse(job.data.n)).length) throw new Error("refused once");
            for (const job of jobs) one.add(job.data.n);
        });
    }
}

async function main() {
    const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
    const config = JSON.parse((await lines.next()).value);
    const PgBoss = createRequire(config.modules + "/")("pg-boss");
    const publishes = config.role === "publisher";
    const boss = new PgBoss({ ...config.database, max: publishes ? config.plan.publishers : 10 });
    boss.on("error", (error) => console.error(error));
    await boss.start();
    const seen = publishes ? [] : config.subscribers.map((index) => new Seen(index));
    if (publishes && config.plan.produce) {
        await boss.createQueue("c0");
        await boss.subscribe("quote", "c0");
    }
    await subscribe(boss, config.plan, seen);
    say({ ready: true });
    for await (const line of { [Symbol.asyncIterator]: () => lines }) {
        const command = JSON.parse(line);
        if (command.do === "stop") break;
        if (command.do === "begin") {
            await begin(boss, config.plan, seen);
        } else if (publishes) {
            say(await publish(boss, config, command));
        } else {
            const collected = await collect(seen, command);
            // Who polls stands still between rounds, lest it slow down whose turn it is.
            for (const one of seen) await boss.offWork(`c${one.index}`);
            say(collected);
        }
    }
    process.exit(0);
}

main().catch((error) => {
    console.error(error);
    process.exit(1);
});
