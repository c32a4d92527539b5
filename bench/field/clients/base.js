// What the client programs in Node have in common. base.py describes how they are told what to do.
"use strict";

const fs = require("fs");
const readline = require("readline");

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

// Whether a consumer gets an event, for systems in which the producer has to know it.
function wants(plan, consumer, number) {
    return plan.filters !== "symbol" || number % plan.symbols === consumer % plan.symbols;
}

function quote(plan, n) {
    return { n, symbol: `S${n % plan.symbols}`, price: n % 1000, volume: n };
}

async function publish(client, config, command) {
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
                await client.send(chunk.map((one) => quote(plan, one)));
                chunk = [];
            }
        }
        if (chunk.length) await client.send(chunk.map((one) => quote(plan, one)));
    }));
    const ended = now();
    const published = sent.numbers.length;
    fs.writeFileSync(command.file, sent.take());
    return { published, began, ended };
}

async function collect(seen, command) {
    const deadline = now() + command.timeout;
    while (now() < deadline && !seen.every((one, i) => one.numbers.length >= command.expect[i])) await sleep(10);
    await sleep(LINGER);
    const received = seen.map((one) => one.numbers.length);
    fs.writeFileSync(command.file, Buffer.concat(seen.map((one) => one.take())));
    return { received };
}

// open(config, seen) returns a client, which has send(quotes) for all in one call, begin() to consume, and pause().
async function serve(open) {
    const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
    const config = JSON.parse((await lines.next()).value);
    const publishes = config.role === "publisher";
    const seen = publishes ? [] : config.subscribers.map((index) => new Seen(index));
    const client = await open(config, seen);
    say({ ready: true });
    for await (const line of { [Symbol.asyncIterator]: () => lines }) {
        const command = JSON.parse(line);
        if (command.do === "stop") break;
        if (command.do === "begin") {
            await client.begin();
        } else if (publishes) {
            say(await publish(client, config, command));
        } else {
            const collected = await collect(seen, command);
            // A client that polls is paused between rounds, because it would slow down the system whose turn it is.
            await client.pause();
            say(collected);
        }
    }
    process.exit(0);
}

function main(open) {
    serve(open).catch((error) => {
        console.error(error);
        process.exit(1);
    });
}

module.exports = { main, wants };
