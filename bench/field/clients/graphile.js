// Producers and workers of graphile-worker.
"use strict";

const { createRequire } = require("module");
const { main, wants } = require("./base.js");

const AT_ONCE = 10;
const ADD = `select count(*) from graphile_worker.add_jobs(array(
    select json_populate_recordset(null::graphile_worker.job_spec, $1::json)))`;

async function send(pool, utils, plan, quotes) {
    const jobs = [];
    for (const payload of quotes) {
        for (let k = 0; k < plan.subscribers; k++) {
            if (wants(plan, k, payload.n)) jobs.push({ identifier: `c${k}`, payload });
        }
    }
    if (jobs.length === 1) {
        await utils.addJob(jobs[0].identifier, jobs[0].payload);
    } else if (jobs.length) {
        await pool.query(ADD, [JSON.stringify(jobs)]);
    }
}

main(async (config, seen) => {
    const load = createRequire(config.modules + "/");
    const { Logger, makeWorkerUtils, run } = load("graphile-worker");
    const { Pool } = load("pg");
    const { plan } = config;
    const logger = new Logger(() => () => {});
    const pools = [];
    const open = (max) => {
        const pool = new Pool({ ...config.database, max });
        pool.on("error", (error) => console.error(error));
        pools.push(pool);
        return pool;
    };
    const pool = open(config.role === "publisher" ? plan.publishers : 1);
    const utils = await makeWorkerUtils({ pgPool: pool, logger });
    await utils.migrate();
    let runners = [];
    return {
        send: (quotes) => send(pool, utils, plan, quotes),
        begin: async () => {
            runners = await Promise.all(seen.map((one, i) => run({
                pgPool: pools[i + 1] ?? open(2),
                logger,
                noHandleSignals: true,
                // By default a worker runs one job at a time.
                concurrency: plan.eager ? AT_ONCE : 1,
                taskList: { [`c${one.index}`]: async (payload) => one.add(payload.n) },
            })));
        },
        pause: async () => {
            await Promise.all(runners.map((runner) => runner.stop()));
            runners = [];
        },
    };
});
