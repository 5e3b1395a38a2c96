// npm run bench:blocking -- --json: see tests/bench/blocking.ts.
await import('../tests/bench/blocking.ts')
