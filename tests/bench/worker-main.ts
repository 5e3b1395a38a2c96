// One process of a system that is measured, driven by messages of its parent: see worker-process.ts.
import { nowMs } from './bench-server.ts'
import { callsOf, type Work } from './systems/system.ts'
import { findSystem } from './systems/index.ts'
import type { FromWorker, ToWorker } from './worker-process.ts'

const [, , family = '', name = '', role = '', url = '', absurdSql] = process.argv
const system = await findSystem(family, name, { absurdSql })
const say = (message: FromWorker): void => void process.send?.(message)

let stop: (() => Promise<void>) | undefined
let work: Work = 'noop'
let [expected, calls, firstMs] = [0, 0, 0]

function expect(count: number): void {
  expected = count * callsOf(work)
  calls = 0
}

function called(times = 1): void {
  if (times === 0) return
  const atMs = nowMs()
  if (calls === 0) firstMs = atMs
  const before = calls
  calls += times
  if (work === 'ping') say({ said: 'pinged', atMs })
  else if (before < expected && calls >= expected) say({ said: 'called', firstMs, lastMs: atMs })
}

process.on('message', (message: ToWorker) => {
  void (async () => {
    if (message.do === 'start') {
      work = message.work
      expect(message.count)
      stop = await system.run(role, url, work, called)
      say({ said: 'started' })
    } else if (message.do === 'expect') {
      expect(message.count)
      say({ said: 'expecting' })
    } else {
      await stop?.()
      stop = undefined
      if (message.do === 'stop') say({ said: 'stopped' })
      else process.disconnect()
    }
  })().catch((error: unknown) => {
    process.stderr.write(`${name} ${role}: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`)
    process.exit(1)
  })
})
// The parent is gone, or has said so: nothing is left to measure, and some systems keep timers that would hold the process.
process.on('disconnect', () => process.exit(0))
say({ said: 'ready' })
