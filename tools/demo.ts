// npm run demo: see examples/demo.ts.
await import('../examples/demo.ts')
