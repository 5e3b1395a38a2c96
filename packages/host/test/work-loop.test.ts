import { expect, test } from 'vitest'
import { createLogger, WorkLoop } from '../src/index.ts'

/** A loop whose turns are answered by hand. */
function loopUnderTest(idleMs = 10_000) {
  const lines: string[] = []
  const turns: { answer: (result: { busy: boolean }) => void; fail: (error: Error) => void }[] = []
  let arrived: () => void = () => {}
  const loop = new WorkLoop({
    name: 'test',
    idleMs,
    maxIdleMs: idleMs * 4,
    logger: createLogger({ role: 'test', level: 'warn', destination: { write: (line: string) => void lines.push(line) } }),
    run: () => {
      const { promise, resolve, reject } = Promise.withResolvers<{ busy: boolean }>()
      turns.push({ answer: resolve, fail: reject })
      arrived()
      return promise
    },
  })
  const turn = async (number: number) => {
    while (turns.length < number) await new Promise<void>((resolve) => (arrived = resolve))
    return turns[number - 1]!
  }
  return { loop, turns, turn, lines }
}
const settled = () => new Promise((resolve) => setImmediate(resolve))

test('while there is work the next turn comes at once; without, it waits', async () => {
  const { loop, turns, turn } = loopUnderTest()
  loop.start()
  ;(await turn(1)).answer({ busy: true })
  ;(await turn(2)).answer({ busy: false })
  await settled()
  expect(turns).toHaveLength(2)
  await loop.stop()
})

test('a wake ends a pause, and a wake during a turn is not lost', async () => {
  const { loop, turn, turns } = loopUnderTest()
  loop.start()
  const first = await turn(1)
  loop.wake()
  first.answer({ busy: false })
  ;(await turn(2)).answer({ busy: false })
  await settled()
  loop.wake()
  ;(await turn(3)).answer({ busy: false })
  await loop.stop()
  expect(turns).toHaveLength(3)
})

test('stop waits for the turn under way, ends a pause, may be repeated, and the loop may be started again', async () => {
  const { loop, turn, turns } = loopUnderTest()
  loop.start()
  loop.start()
  const first = await turn(1)
  let stopped = false
  const stopping = loop.stop().then(() => (stopped = true))
  await settled()
  expect(stopped).toBe(false)
  first.answer({ busy: true })
  await stopping
  await loop.stop()
  expect(turns).toHaveLength(1)
  expect(loop.isHealthy()).toBe('test is stopped')
  loop.start()
  ;(await turn(2)).answer({ busy: false })
  await settled()
  await loop.stop()
})

test('errors are waited out, logged once and not every time, and the loop recovers', async () => {
  const { loop, turn, lines } = loopUnderTest(1)
  loop.start()
  for (let failure = 1; failure <= 3; failure += 1) {
    ;(await turn(failure)).fail(new Error('broken'))
    await settled()
    loop.wake()
  }
  ;(await turn(4)).answer({ busy: false })
  expect(loop.isHealthy()).toBeNull()
  await loop.stop()
  expect(lines.filter((line) => line.includes('broken'))).toHaveLength(1)
})
