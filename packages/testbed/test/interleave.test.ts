import type { Db } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '../src/index.ts'
import {
  expectInterleavingToFail,
  InterleavingBrokenError,
  type Interleaving,
  interleave,
  MutationError,
  mutated,
  type Session,
  withoutText,
} from '../src/interleave.ts'
import { CompiledQuery, sql } from 'kysely'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'

let database: TestDatabase
beforeAll(async () => {
  database = await testDatabase()
  await sql`CREATE TABLE public.account (id integer PRIMARY KEY, balance integer NOT NULL)`.execute(database.db)
  await sql`GRANT SELECT ON public.account TO holdfast_flusher`.execute(database.db)
})
afterAll(() => database[Symbol.asyncDispose]())

/** What two counters do to one account; two accounts with 0. */
const accounts = {
  setup: async (db: Db) => {
    await sql`INSERT INTO public.account VALUES (1, 0), (2, 0)`.execute(db)
    return { read: {} as Record<string, number> }
  },
  reset: async (db: Db) => void (await sql`DELETE FROM public.account`.execute(db)),
}
const begin = (s: Session) => s.begin()
const commit = (s: Session) => s.commit()
const none = async () => undefined
const add = async (s: Session, id: number) =>
  void (await sql`UPDATE public.account SET balance = balance + 1 WHERE id = ${id}`.execute(s.db))
async function balance(db: Db, id = 1): Promise<number | undefined> {
  const { rows } = await sql<{ balance: number }>`SELECT balance FROM public.account WHERE id = ${id}`.execute(db)
  return rows[0]?.balance
}
async function thrownBy(run: Promise<unknown>): Promise<Error> {
  return run.then(
    () => expect.unreachable('it did not throw'),
    (error: Error) => error,
  )
}

describe('orders', () => {
  const run = (...lengths: number[]) => {
    const sessions = Object.fromEntries(
      lengths.map((length, index) => [
        `s${index}`,
        { steps: Object.fromEntries(Array.from({ length }, (_, step) => [`step${step}`, none])) },
      ]),
    )
    return interleave({ database, ...accounts, sessions, check: none })
  }

  test('each order that keeps that of the sessions is run once', async () => {
    const { orders, carriedOut } = await run(2, 2)
    expect(orders).toBe(6)
    expect(carriedOut.toSorted()).toEqual([
      's0.step0 → s0.step1 → s1.step0 → s1.step1',
      's0.step0 → s1.step0 → s0.step1 → s1.step1',
      's0.step0 → s1.step0 → s1.step1 → s0.step1',
      's1.step0 → s0.step0 → s0.step1 → s1.step1',
      's1.step0 → s0.step0 → s1.step1 → s0.step1',
      's1.step0 → s1.step1 → s0.step0 → s0.step1',
    ])
  })

  test('three sessions', async () => {
    const { orders, carriedOut } = await run(2, 2, 1)
    expect([orders, carriedOut.length]).toEqual([30, 30]) // 5! / (2! 2! 1!)
  })

  test('`only` takes an order or a trace, and no part of one', async () => {
    const given: Interleaving<unknown> = {
      database,
      ...accounts,
      sessions: { a: { steps: { begin, add: (s) => add(s, 1), commit } }, b: { steps: { add: (s) => add(s, 1) } } },
      check: async (db) => expect(await balance(db)).toBe(2),
    }
    const { carriedOut } = await interleave({ ...given, only: 'a.begin, a.add, b.add, a.commit' })
    expect(carriedOut).toEqual(['a.begin → a.add → b.add (waits for a) → a.commit'])
    expect((await interleave({ ...given, only: carriedOut[0] })).orders).toBe(1)
    await expect(interleave({ ...given, only: 'a.begin, a.add' })).rejects.toThrow(
      'is no order of the steps a.begin, a.add, a.commit, b.add',
    )
    await expect(interleave({ ...given, only: 'a.add, a.begin, a.commit, b.add' })).rejects.toThrow(InterleavingBrokenError)
  })
})

describe('waiting', () => {
  test('a blocked session waits while the other goes on, and its later steps stand back', async () => {
    const sessions = {
      a: { steps: { begin, add: (s: Session) => add(s, 1), commit } },
      b: { steps: { add: (s: Session) => add(s, 1), read: (s: Session) => balance(s.db) } },
    }
    const report = await interleave({
      database,
      ...accounts,
      sessions,
      check: async (db, _, outcome) => {
        expect(outcome.errors).toEqual([])
        expect(await balance(db)).toBe(2)
        // It saw what it had waited for, or was there before.
        expect(outcome.value('b.read')).toBe(outcome.trace.indexOf('a.commit') < outcome.trace.indexOf('b.read') ? 2 : 1)
        const waited = outcome.trace.some((step) => step === 'b.add (waits for a)')
        expect(outcome.waits.get('b.add')).toEqual(waited ? ['a'] : undefined)
      },
    })
    // 5! / (3! 2!) = 10. In two of them b.add comes between a.add and a.commit.
    expect([report.orders, report.withWaits]).toEqual([10, 2])
    expect(report.carriedOut).toContain('a.begin → a.add → b.add (waits for a) → a.commit → b.read')
  })

  test('a session waits for two others, one after the other', async () => {
    const holds = (id: number) => ({ steps: { begin, add: (s: Session) => add(s, id), commit } })
    const both = async (s: Session) => {
      await add(s, 1)
      await add(s, 2)
    }
    const { carriedOut } = await interleave({
      database,
      ...accounts,
      sessions: { a: holds(1), b: holds(2), c: { steps: { both } } },
      check: async (db) => expect([await balance(db, 1), await balance(db, 2)]).toEqual([2, 2]),
      only: 'a.begin, b.begin, a.add, b.add, c.both, a.commit, b.commit',
    })
    expect(carriedOut).toEqual(['a.begin → b.begin → a.add → b.add → c.both (waits for a) → a.commit → b.commit'])
  })

  test('a session has the role, the locks and the settings of its own connection, and keeps none of them', async () => {
    const pids = new Set<number>()
    const look = async (s: Session) => {
      const { rows } = await sql<{ pid: number; name: string; timeout: string; locked: boolean }>`
        SELECT pg_backend_pid() AS pid, current_user::text AS name, current_setting('lock_timeout') AS timeout,
               EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locked`.execute(s.db)
      pids.add(rows[0]?.pid ?? -1)
      return rows[0]
    }
    const leave = async (s: Session) => {
      await s.begin()
      await sql`SET lock_timeout = '5s'`.execute(s.db)
      await sql`SELECT pg_advisory_lock(1)`.execute(s.db)
      // And the transaction is left open.
    }
    await interleave({
      database,
      ...accounts,
      sessions: { a: { role: 'flusher', steps: { look, leave } }, b: { steps: { none } } },
      check: async (_db, _context, outcome) => {
        expect(outcome.value('a.look')).toMatchObject({ name: 'holdfast_flusher', timeout: '0', locked: false })
      },
    })
    expect(pids.size).toBe(1)
  })

  test('nothing moves: says who waits for whom', async () => {
    const error = await thrownBy(
      interleave({
        database,
        ...accounts,
        sessions: { a: { steps: { begin, add: (s) => add(s, 1) } }, b: { steps: { add: (s) => add(s, 1) } } },
        check: none,
        only: 'a.begin, a.add, b.add',
        hangMs: 100,
      }),
    )
    expect(error).toBeInstanceOf(InterleavingBrokenError)
    expect(error.message).toContain('a.begin → a.add → b.add (waits for a)')
    expect(error.message).toMatch(/nothing has moved for 100 ms:\n.*a \(between its steps\) is idle in transaction/)
    expect(error.message).toMatch(/b \(b\.add\) waits for a, Lock\/transactionid, last sent: UPDATE public\.account/)
  })

  test('a step that waits for no lock and never ends is told, and leaves nothing open', async () => {
    const never = () => Promise.withResolvers<void>().promise
    const given: Interleaving<unknown> = { database, ...accounts, sessions: { a: { steps: { never } } }, check: none, hangMs: 50 }
    expect((await thrownBy(interleave(given))).message).toMatch(/a \(a\.never\) is idle and waits for no lock/)
    const open = () =>
      sql`SELECT FROM pg_stat_activity WHERE application_name LIKE 'session %' AND datname = current_database()`.execute(database.db)
    // A server process that has been ended is still listed until it has left.
    await expect.poll(async () => (await open()).rows, { timeout: 5_000 }).toEqual([])
  })

  test('who waits for something outside of the test is slow and not blocked', async () => {
    const holding = async (s: Session) => {
      const held = Promise.withResolvers<void>()
      const outside = database.db.transaction().execute(async (trx) => {
        await sql`UPDATE public.account SET balance = 10 WHERE id = 1`.execute(trx)
        held.resolve()
        await sql`SELECT pg_sleep(0.05)`.execute(trx) // longer than two looks
      })
      await Promise.race([held.promise, outside])
      await Promise.all([outside, add(s, 1)])
    }
    const report = await interleave({
      database,
      ...accounts,
      sessions: { a: { steps: { holding } }, b: { steps: { none } } },
      check: async (db, _, outcome) => {
        expect(outcome.errors).toEqual([])
        expect(await balance(db)).toBe(11)
      },
    })
    expect([report.orders, report.withWaits]).toEqual([2, 0])
  })
})

describe('races', () => {
  /** Read, then write what was read plus one. */
  const readThenWrite = (read: (s: Session) => Promise<number | undefined>): Interleaving<{ read: Record<string, number> }> => {
    const steps = {
      begin,
      read: async (s: Session, context: { read: Record<string, number> }) => {
        context.read[s.name] = (await read(s)) ?? Number.NaN
      },
      write: (s: Session, context: { read: Record<string, number> }) =>
        sql`UPDATE public.account SET balance = ${(context.read[s.name] ?? Number.NaN) + 1}::integer WHERE id = 1`.execute(s.db),
      commit,
    }
    return {
      database,
      ...accounts,
      sessions: { a: { steps }, b: { steps } },
      check: async (db, _, outcome) => {
        expect(outcome.errors).toEqual([])
        expect(await balance(db)).toBe(2)
      },
    }
  }
  const compile = (): CompiledQuery<{ balance: number }> =>
    CompiledQuery.raw('/* toy.read */ SELECT balance FROM public.account WHERE id = $1 FOR UPDATE', [1]) as CompiledQuery<{
      balance: number
    }>
  const locked = Object.assign(async (db: Db) => (await db.executeQuery(compile())).rows, { compile })

  test('a lock keeps updates from being lost, in a small part of a second', async () => {
    const startMs = performance.now()
    const report = await interleave(readThenWrite(async (s) => (await locked(s.db))[0]?.balance))
    expect(report.orders).toBe(70)
    expect(report.withWaits).toBeGreaterThan(30)
    expect(report.carriedOut.length).toBeLessThan(70)
    expect(performance.now() - startMs).toBeLessThan(5_000) // some 900 ms; a poll that waited 50 ms a step would need 20 s
  })

  test('without it one is lost, and the failure names the order', async () => {
    const unlocked = mutated(locked, [' FOR UPDATE', ''])
    const given = readThenWrite(async (s) => (await unlocked(s.db, {}))[0]?.balance)
    const { failures, orders } = await expectInterleavingToFail({ ...given, onlyTheRace: true })
    expect(failures.length).toBeLessThan(orders)
    const lost = failures.find(({ order }) => order === 'a.begin, a.read, b.begin, b.read, b.write, a.write, b.commit, a.commit')
    expect(lost?.trace).toBe('a.begin → a.read → b.begin → b.read → b.write → a.write (waits for b) → b.commit → a.commit')

    const error = await thrownBy(interleave(given))
    expect(error.message).toMatch(/^\d+ of 70 orders failed:\n {2}a\.begin → a\.read → .*expected 1 to be 2/s)
    const [, only] = /again: only: '(.*)'/.exec(error.message) ?? []
    expect((await thrownBy(interleave({ ...given, only }))).message).toContain('1 of 1 orders failed')
  })

  test('a test that cannot fail is told', async () => {
    const given: Interleaving<unknown> = {
      database,
      ...accounts,
      sessions: { a: { steps: { none } }, b: { steps: { none } } },
      check: none,
    }
    await expect(expectInterleavingToFail(given)).rejects.toThrow('all 2 orders passed')
    const fails = { ...given, check: async () => expect.fail('always') }
    await expect(expectInterleavingToFail({ ...fails, onlyTheRace: true })).rejects.toThrow('an order fails in which nothing meets')
    expect((await expectInterleavingToFail(fails)).failures).toHaveLength(2)
  })

  test('serialization failure: a commit after an error is none', async () => {
    const steps = {
      begin: (s: Session) => s.begin('repeatable read'),
      read: (s: Session) => balance(s.db),
      add: (s: Session) => add(s, 1),
      commit,
    }
    let lost = 0
    await interleave({
      database,
      ...accounts,
      sessions: { a: { steps }, b: { steps: { ...steps } } },
      check: async (db, _, outcome) => {
        const failed = outcome.errors.filter((error) => error.endsWith('add: 40001'))
        expect(outcome.errors).toEqual(
          failed.flatMap((error) => [error, `${error[0]}.commit: Transaction was rolled back instead of committed`]),
        )
        lost += failed.length
        expect(await balance(db)).toBe(2 - failed.length)
      },
    })
    expect(lost).toBeGreaterThan(0)
  })
})

describe('errors', () => {
  test('a deadlock ends with one victim', async () => {
    const locks = (first: number, second: number) => ({
      steps: { begin, first: (s: Session) => add(s, first), second: (s: Session) => add(s, second), commit },
      stopOnError: true,
    })
    let deadlocks = 0
    const report = await interleave({
      database,
      ...accounts,
      sessions: { a: locks(1, 2), b: locks(2, 1) },
      check: async (db, _, outcome) => {
        const victims = outcome.errors.filter((error) => error.endsWith('.second: 40P01'))
        expect(outcome.errors).toEqual(victims)
        expect(victims.length).toBeLessThan(2)
        deadlocks += victims.length
        // The victim's transaction is gone, and its commit was left out; the other's went through.
        expect(outcome.trace.filter((step) => step.endsWith('.commit (left out)'))).toHaveLength(victims.length)
        expect([await balance(db, 1), await balance(db, 2)]).toEqual(victims.length === 1 ? [1, 1] : [2, 2])
      },
    })
    expect(deadlocks).toBeGreaterThan(0)
    expect(
      report.carriedOut.some((trace) =>
        /second \(waits for b\).*second \(waits for a\)|second \(waits for a\).*second \(waits for b\)/.test(trace),
      ),
    ).toBe(true)
  })

  test('a unique violation has its constraint, and what follows in its transaction 25P02', async () => {
    const steps = {
      begin,
      insert: (s: Session) => sql`INSERT INTO public.account VALUES (3, 0)`.execute(s.db),
      read: (s: Session) => balance(s.db, 3),
      commit,
    }
    await interleave({
      database,
      ...accounts,
      sessions: { a: { steps }, b: { steps } },
      check: async (db, _, outcome) => {
        const loser = outcome.error('a.insert') === undefined ? 'b' : 'a'
        expect(outcome.error(`${loser}.insert`)).toMatchObject({ code: '23505', constraint: 'account_pkey' })
        expect(() => outcome.value(`${loser}.insert`)).toThrow('duplicate key')
        expect(outcome.errors).toEqual([
          `${loser}.insert: 23505`,
          `${loser}.read: 25P02`,
          `${loser}.commit: Transaction was rolled back instead of committed`,
        ])
        expect(await balance(db, 3)).toBe(0)
      },
    })
  })

  test('a mistake is neither a pass nor a lost race', async () => {
    const plan = (step: (s: Session) => Promise<unknown>): Interleaving<unknown> => ({
      database,
      ...accounts,
      sessions: { a: { role: 'flusher', steps: { step } }, b: { steps: { none } } },
      check: async (_db, _context, outcome) => expect(outcome.errors).toEqual([]),
    })
    const text = plan((s) => sql`SELECT FROM public.no_such_table`.execute(s.db))
    await expect(interleave(text)).rejects.toThrow(/step a\.step cannot run: 42P01/)
    await expect(expectInterleavingToFail(text)).rejects.toThrow(InterleavingBrokenError)
    await expect(interleave(plan((s) => add(s, 1)))).rejects.toThrow(/step a\.step cannot run: 42501/)
    await expect(interleave(plan((s) => s.commit()))).rejects.toThrow('session a is in no transaction')
    const check: Interleaving<unknown>['check'] = async (db) => void (await sql`SELECT no_such_column`.execute(db))
    await expect(expectInterleavingToFail({ ...plan(none), check })).rejects.toThrow('the check cannot run')
  })
})

describe('mutations', () => {
  const compile = (id: number): CompiledQuery<{ id: number }> =>
    CompiledQuery.raw('/* toy.echo */ SELECT $1::integer AS id -- FOR UPDATE', [id]) as CompiledQuery<{ id: number }>
  const echo = Object.assign(async (db: Db, id: number) => (await db.executeQuery(compile(id))).rows, { compile })

  test('a changed statement is called as the statement is', async () => {
    expect(await echo(database.db, 3)).toEqual([{ id: 3 }])
    expect(await mutated(echo, [/AS (id)/, '+ $1 AS id'], ['-- FOR UPDATE', ''])(database.db, 3)).toEqual([{ id: 6 }])
  })

  test('it is prepared under no name', async () => {
    const unnamed = mutated(echo, ['-- FOR UPDATE', ''])
    await database.db.connection().execute(async (db) => {
      await unnamed(db, 1)
      await echo(db, 1)
      const { rows } = await sql<{ name: string }>`SELECT name FROM pg_prepared_statements WHERE name LIKE 'toy.echo.%'`.execute(db)
      expect(rows).toHaveLength(1)
    })
  })

  test('one that finds nothing throws: at once where there is a sample, and never as a lost race', async () => {
    expect(() =>
      mutated(
        Object.assign(async () => [], { compile, sample: 1 }),
        ['FOR SHARE', ''],
      ),
    ).toThrow(MutationError)
    const nothing = mutated(echo, ['FOR SHARE', ''])
    await expect(nothing(database.db, 1)).rejects.toThrow('"FOR SHARE" changes nothing in the statement:\n/* toy.echo */')
    await expect(
      expectInterleavingToFail({
        database,
        ...accounts,
        sessions: { a: { steps: { echo: (s) => nothing(s.db, 1) } }, b: { steps: { none } } },
        check: async (_db, _context, outcome) => expect(outcome.errors).toEqual([]),
      }),
    ).rejects.toThrow(/step a\.echo cannot run: .*changes nothing/)
  })

  test('withoutText takes out each place', () => {
    expect(withoutText('a FOR UPDATE, b FOR UPDATE', / FOR UPDATE/)).toBe('a, b')
    expect(() => withoutText('a', 'FOR UPDATE')).toThrow(MutationError)
  })
})
