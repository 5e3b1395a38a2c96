// Runs in a worker thread of LeaseKeeper, with one connection of its own.
import { parentPort, workerData } from 'node:worker_threads'
import type { InstanceId } from '@holdfast/contracts'
import { heartbeat } from '@holdfast/queries'
import { connect } from '@holdfast/schema'
import { monotonicMs } from './lease-keeper.ts'
import type { FromLeaseThread, LeaseThreadData, ToLeaseThread } from './lease-thread-messages.ts'

/** Claims renewed by one statement; more go in several, so that no single one holds thousands of row locks. */
const BATCH = 1_000

const { connection, leaseMs, heartbeatMs } = workerData as LeaseThreadData
const db = connect({ ...connection, max: 1, applicationName: `${connection.applicationName ?? 'holdfast'}-leases` })
const held = new Map<InstanceId, { readonly epoch: string; readonly untilMs: number }>()
let failures = 0

const say = (message: FromLeaseThread): void => parentPort?.postMessage(message)

async function beat(): Promise<void> {
  const nowMs = monotonicMs()
  // A step that has outrun its timeout keeps its place in `held` until it ends, but its lease is left to run out.
  const claims = [...held].filter(([, claim]) => claim.untilMs > nowMs)
  for (let from = 0; from < claims.length; from += BATCH) {
    const batch = claims.slice(from, from + BATCH)
    const lost = await heartbeat(db, { ids: batch.map(([id]) => id), epochs: batch.map(([, claim]) => claim.epoch), leaseMs })
    // A claim that was dropped, or taken again, while the statement ran is not lost.
    const really = lost.filter((row) => held.get(row.id)?.epoch === row.claim_epoch)
    for (const row of really) held.delete(row.id)
    if (really.length > 0) say({ lost: really.map((row) => ({ id: row.id, epoch: row.claim_epoch })) })
  }
}

async function loop(): Promise<void> {
  try {
    await beat()
    failures = 0
    schedule(heartbeatMs)
  } catch (error) {
    failures += 1
    say({ error: error instanceof Error ? error.message : String(error), consecutive: failures })
    // Sooner than the next beat: each failed one has used a part of the lease.
    schedule(Math.min(heartbeatMs, 250 * 2 ** Math.min(failures, 8)))
  }
}

let timer: NodeJS.Timeout
function schedule(ms: number): void {
  timer = setTimeout(() => void loop(), ms)
}
schedule(heartbeatMs)

parentPort?.on('message', (message: ToLeaseThread) => {
  if ('hold' in message) {
    for (const { id, epoch, untilMs } of message.hold) held.set(id, { epoch, untilMs })
  } else if ('drop' in message) {
    for (const { id, epoch } of message.drop) if (held.get(id)?.epoch === epoch) held.delete(id)
  } else {
    clearTimeout(timer)
    void db.destroy().finally(() => parentPort?.close())
  }
})
