import { BenchServer, open } from './measured.ts'
import { drainStaged } from './holdfast-staged.ts'
import { drainGraphile } from './graphile-worker.ts'
await using server = await BenchServer.start()
for (let i = 0; i < +(process.argv[2] ?? 2); i++)
  for (const [n, f] of [
    ['graphile', () => drainGraphile(server, 20000)],
    ['staged', () => drainStaged(server, 20000, 'off', 'noop')],
  ] as const) {
    const r = await f()
    console.log(n, r[0]!.value, '/s tx', r[3]!.value)
  }
