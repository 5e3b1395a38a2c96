// What the pages show is not only compiled: the machines in their first blocks are run, on the real engine and database, through what their pages say of them.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Machine } from '@holdfast/engine'
import { testEngine } from '@holdfast/testing'
import { afterAll, describe, expect, test } from 'vitest'
import { BLOCKS_FOLDER, blocksOf } from './page-blocks.ts'

mkdirSync(BLOCKS_FOLDER, { recursive: true })
const folder = mkdtempSync(join(BLOCKS_FOLDER, 'flows-'))
afterAll(() => rmSync(folder, { recursive: true }))

/** The machines that the first `ts` block of a page exports, by their names there. */
async function machinesOf<Name extends string>(page: string, ...names: Name[]): Promise<Record<Name, Machine>> {
  const block = blocksOf(page).find(({ text }) => names.every((name) => text.includes(`export const ${name} = `)))
  if (block === undefined) throw new Error(`${page} has no block that exports ${names.join(', ')}`)
  const file = join(folder, block.file)
  writeFileSync(file, block.text)
  const exported = (await import(file)) as Record<Name, Machine>
  return Object.fromEntries(names.map((name) => [name, exported[name]])) as Record<Name, Machine>
}

const flushes = ['staged', 'direct'] as const

describe.each(flushes)('with flush %s', (flush) => {
  test('jobs.md: checked input, a result, and an error that is not tried again', async () => {
    const { resize } = await machinesOf('docs/jobs.md', 'resize')
    await using holdfast = await testEngine({ machines: [resize], flush })
    const good = await holdfast.enqueue(resize, { image: 'https://example.com/a.png', width: 80 })
    const bad = await holdfast.enqueue(resize, { image: 'http://example.com/a.png', width: 80 })
    await holdfast.drain()
    await holdfast.assertDone(good, { image: 'https://example.com/a.png', width: 80, key: `${good}:start` })
    await holdfast.assertFailed(bad, 'bad_image')
    expect(await holdfast.instance(good)).toMatchObject({ queue: 'images' })
    expect(await holdfast.history(bad)).toHaveLength(1)
  })

  test('machines.md: approved, rejected, and reminded three times in eight days', async () => {
    const { approval } = await machinesOf('docs/machines.md', 'approval')
    await using holdfast = await testEngine({ machines: [approval], flush })
    // As texts: the types of its signals are compiled with the page, and not known here.
    const approved: string = await holdfast.enqueue(approval, { document: 'a' })
    const rejected: string = await holdfast.enqueue(approval, { document: 'b' })
    const forgotten: string = await holdfast.enqueue(approval, { document: 'c' })
    await holdfast.drain()
    await holdfast.assertAwaiting(approved)
    await holdfast.signal(approved, 'approved', { by: 'Ada' })
    await holdfast.signal(rejected, 'rejected', { why: 'too long' })
    await holdfast.drain({ travel: '7 days' })
    await holdfast.assertDone(approved, { by: 'Ada' })
    await holdfast.assertFailed(rejected, 'rejected')
    expect(await holdfast.instance(forgotten)).toMatchObject({ status: 'awaiting_signal', state: { document: 'c', reminders: 3 } })
    await holdfast.drain({ travel: '1 day' })
    await holdfast.assertStatus(forgotten, 'cancelled')
  })

  test('limits.md: the tokens of one step, the slot of the next, and no key at the end', async () => {
    const { publish } = await machinesOf('docs/limits.md', 'publish')
    await using holdfast = await testEngine({ machines: [publish], flush })
    await holdfast.putRateLimit('mail', { rate: 10, period: '1 hour', burst: 20 })
    await holdfast.putGate('reports', 4)
    const all = await holdfast.enqueueMany(Array.from({ length: 12 }, () => ({ machine: publish, state: {} })))
    await holdfast.drain()
    // A full bucket of 20 is ten times the weight of 2.
    expect(await holdfast.instances({ status: 'done' })).toHaveLength(10)
    expect(await holdfast.instances({ status: 'throttled' })).toHaveLength(2)
    await holdfast.drain({ travel: '1 hour' })
    for (const id of all) await holdfast.assertDone(id)
    expect(await holdfast.query('SELECT count(holder_id)::integer AS held FROM holdfast.gate_slot')).toEqual([{ held: 0 }])
  })

  test('children.md: a book is bound when its pages are there', async () => {
    const { book, convert } = await machinesOf('docs/children.md', 'book', 'convert')
    await using holdfast = await testEngine({ machines: [book, convert], flush })
    const id = await holdfast.enqueue(book, { pages: 3 })
    await holdfast.drain()
    await holdfast.assertDone(id, { texts: ['page 0', 'page 1', 'page 2'], counts: { done: 3 } })
  })
})

test('a page whose example is gone is found', async () => {
  await expect(machinesOf('docs/jobs.md', 'gone')).rejects.toThrow('docs/jobs.md has no block that exports gone')
})
