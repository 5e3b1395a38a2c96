import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import fc from 'fast-check'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { program } from './commands.ts'
import { runProgram } from './run-program.ts'

const PROGRAMS = Number(process.env['HOLDFAST_MODEL_PROGRAMS'] ?? 60)
const SEED = process.env['HOLDFAST_MODEL_SEED']
/** A program takes 0.1 s, and thousands of smaller ones can be made of it. What is found in this time is small enough to read. */
const SHRINKING_MS = 120_000

let database: TestDatabase
beforeAll(async () => {
  database = await testDatabase()
})
afterAll(async () => {
  await database[Symbol.asyncDispose]()
})

test(`${PROGRAMS} random programs do to the tables what the specification says`, { timeout: 3_600_000 }, async () => {
  let failedAt = Number.POSITIVE_INFINITY
  let ran = 0
  await fc.assert(
    fc.asyncProperty(program, async (given) => {
      if (performance.now() - failedAt > SHRINKING_MS) return
      ran += 1
      try {
        await runProgram(database.db, given)
      } catch (error) {
        failedAt = Math.min(failedAt, performance.now())
        throw error
      }
    }),
    { numRuns: PROGRAMS, ...(SEED === undefined ? {} : { seed: Number(SEED) }) },
  )
  expect(ran).toBe(PROGRAMS)
})
