// Publishers and workers of pg-boss.
"use strict";

const { createRequire } = require("module");
const { main, wants } = require("./base.js");

function topic(plan, number) {
    return plan.filters === "symbol" ? `S${number % plan.symbols}` : "quote";
}

async function send(boss, plan, quotes) {
    if (quotes.length === 1) {
        await boss.publish(topic(plan, quotes[0].n), quotes[0]);
        return;
    }
    const jobs = [];
    for (const data of quotes) {
        for (let k = 0; k < plan.subscribers; k++) {
            if (wants(plan, k, data.n)) jobs.push({ name: `c${k}`, data });
        }
    }
    await boss.insert(jobs);
}

// Two processes that create queues at the same time end in a deadlock over their foreign keys, so they try again.
async function createQueue(boss, name) {
    for (;;) {
        try {
            return await boss.createQueue(name, { retryLimit: 5, retryDelay: 0 });
        } catch (error) {
            if (error.code !== "40P01") throw error;
            await new Promise((resolve) => setTimeout(resolve, 3000 * Math.random()));
        }
    }
}

async function subscribe(boss, plan, indexes) {
    for (const index of indexes) {
        const name = `c${index}`;
        await createQueue(boss, name);
        await boss.subscribe(plan.filters === "symbol" ? topic(plan, index) : "quote", name);
    }
}

async function begin(boss, plan, seen) {
    for (const one of seen) {
        const options = { batchSize: plan.batch, pollingIntervalSeconds: plan.eager ? 0.5 : 2 };
        await boss.work(`c${one.index}`, options, async (jobs) => {
            // pg-boss lets a batch fail as a whole, so one event that fails brings back all of them.
            if (plan.fail_first && jobs.filter((job) => one.refuse(job.data.n)).length) throw new Error("refused once");
            for (const job of jobs) one.add(job.data.n);
        });
    }
}

main(async (config, seen) => {
    const PgBoss = createRequire(config.modules + "/")("pg-boss");
    const publishes = config.role === "publisher";
    const { plan } = config;
    const boss = new PgBoss({ ...config.database, max: publishes ? plan.publishers : 10 });
    boss.on("error", (error) => console.error(error));
    await boss.start();
    // In a plan without consumers there is one queue all the same, so that publishers have where to send.
    await subscribe(boss, plan, publishes && plan.produce ? [0] : seen.map((one) => one.index));
    return {
        send: (quotes) => send(boss, plan, quotes),
        begin: () => begin(boss, plan, seen),
        pause: async () => {
            for (const one of seen) await boss.offWork(`c${one.index}`);
        },
    };
});
