// npm run chaos -- --instances 10000: see tests/chaos.
await import('../tests/chaos/main.ts')
