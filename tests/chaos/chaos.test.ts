import { expect, test } from 'vitest'
import { complaints, runChaos } from './chaos-run.ts'

test('a few hundred checkouts survive a SIGKILL of each role and of PostgreSQL: nothing lost, stuck or doubled', {
  timeout: 180_000,
}, async () => {
  const report = await runChaos({ instances: 400 })
  expect(complaints(report)).toEqual([])
  expect(report).toMatchObject({ done: 400, effects: 400, notEndedOnce: 0 })
})
