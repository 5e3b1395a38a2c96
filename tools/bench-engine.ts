// npm run bench:engine -- --json: see tests/bench/engine.ts.
await import('../tests/bench/engine.ts')
