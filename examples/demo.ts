// npm run demo: enqueues checkouts through the client, sends their payments, shows what happens, and sums up. Needs `npm start` in another terminal.
import { existsSync, readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { HoldfastApiError, HoldfastClient } from '@holdfast/client'
import { checkout } from './checkout.ts'

const { values } = parseArgs({
  options: { instances: { type: 'string', default: '200' }, dev: { type: 'string', default: '.holdfast/dev.json' } },
})
const count = Number(values.instances)
if (!Number.isInteger(count) || count < 1) fail(`--instances must be a whole number of at least 1, not ${values.instances}`)
if (!existsSync(values.dev)) fail(`there is no ${values.dev}: run npm start in another terminal first`)

const { apiUrl, token } = JSON.parse(readFileSync(values.dev, 'utf8')) as { apiUrl: string; token: string }
const client = new HoldfastClient({ url: apiUrl, token })
const run = Date.now().toString(36)
const orders = Array.from({ length: count }, (_, index) => ({ order: index + 1, key: `demo-${run}-${index + 1}` }))
const startedMs = performance.now()

const { ids } = await client.enqueueMany(orders.map(({ order, key }) => ({ machine: checkout, state: { order }, correlationKey: key })))
say(`${count} checkouts are in; each one waits for its payment.`)

let paid = 0
const paying = pay()
await watch()
await paying
await sumUp()

/** Payments arrive in any order; every tenth is delivered twice, as payment providers do. */
async function pay(): Promise<void> {
  const shuffled = orders.map((order) => ({ order, place: Math.random() })).sort((a, b) => a.place - b.place)
  for (const [index, { order }] of shuffled.entries()) {
    const send = () =>
      client.signal<typeof checkout, 'payment_confirmed'>(
        { correlationKey: order.key },
        'payment_confirmed',
        { amount: order.order * 10 },
        { dedupKey: 'payment' },
      )
    await send()
    paid += 1
    if (index % 10 === 0) {
      await send().catch((error: unknown) => {
        // It has been shipped meanwhile: the instance has ended and takes no signals any more.
        if (!(error instanceof HoldfastApiError && error.code === 'not_found')) throw error
      })
    }
    if (count <= 1_000) await sleep(5)
  }
}

async function watch(): Promise<void> {
  for (;;) {
    const counts = await ended()
    const bar = '#'.repeat(Math.round((counts.done / count) * 30)).padEnd(30, '.')
    progress(`[${bar}] ${paid} paid, ${counts.done} shipped, ${counts.failed} failed`)
    if (counts.done + counts.failed >= count) return
    await sleep(150)
  }
}

async function ended(): Promise<{ done: number; failed: number }> {
  const counts = { done: 0, failed: 0 }
  const ours = new Set<string>(ids)
  const oldest = ids.reduce((a, b) => (BigInt(a) < BigInt(b) ? a : b))
  for await (const instance of client.list({ machine: checkout.name, pageSize: 500 })) {
    if (BigInt(instance.id) < BigInt(oldest)) break
    if (!ours.has(instance.id)) continue
    if (instance.status === 'done') counts.done += 1
    else if (instance.status === 'failed' || instance.status === 'cancelled') counts.failed += 1
  }
  return counts
}

async function sumUp(): Promise<void> {
  const seconds = (performance.now() - startedMs) / 1_000
  const [first] = ids
  const result = first === undefined ? undefined : await client.waitFor<typeof checkout>(first, { timeoutMs: 5_000 })
  say(`\n${count} checkouts ended in ${seconds.toFixed(1)} s. The first one: ${JSON.stringify(result)}`)
  for (const { from_step, kind, worker } of first === undefined ? [] : await client.history(first))
    say(`  ${from_step.padEnd(6)} ${kind.padEnd(13)} by ${worker ?? 'nobody'}`)
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}
function progress(line: string): void {
  // One line that changes on a terminal; in a file, a line each time something has.
  process.stdout.write(process.stdout.isTTY ? `\r${line}` : `${line}\n`)
}
function fail(message: string): never {
  process.stderr.write(`${message}\n`)
  process.exit(1)
}
