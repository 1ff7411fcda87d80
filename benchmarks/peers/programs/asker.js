// The same as asker.py for pm2: `node asker.js PM2_MODULE QUERIES RATE SECONDS`.
const pm2 = require(process.argv[2]);
const queries = parseInt(process.argv[3]);
const gapNs = Number(process.argv[4]) ? BigInt(Math.round(1e9 / Number(process.argv[4]))) : 0n;
const list = () => new Promise((done, failed) => pm2.list((error, found) => (error ? failed(error) : done(found))));
const until = (ns) => new Promise((done) => setTimeout(done, Number(ns) / 1e6));

pm2.connect(async (error) => {
    if (error) throw error;
    await list();
    const latencies = [];
    const begun = process.hrtime.bigint();
    let due = begun;
    for (let i = 0; i < queries; i++) {
        const early = due - process.hrtime.bigint();
        if (early > 0n) await until(early);
        const sent = process.hrtime.bigint();
        if (Number(sent - begun) > Number(process.argv[5]) * 1e9) break;
        await list();
        latencies.push(Number(process.hrtime.bigint() - sent) / 1e6);
        due += gapNs;
    }
    console.log(JSON.stringify({latencies_ms: latencies, duration_s: Number(process.hrtime.bigint() - begun) / 1e9}));
    pm2.disconnect();
    process.exit(0);
});
