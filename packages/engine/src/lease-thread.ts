// Runs in a worker thread of LeaseKeeper, with one connection of its own.
import { parentPort, workerData } from 'node:worker_threads'
import type { InstanceId } from '@holdfast/contracts'
import { heartbeat } from '@holdfast/queries'
import { connect } from '@holdfast/schema'
import { ClaimTable, monotonicMs } from './claim-table.ts'
import type { FromLeaseThread, LeaseThreadData } from './lease-thread-messages.ts'

/** Claims renewed by one statement; more go in several, so that no single one holds thousands of row locks. */
const BATCH = 1_000

const { connection, leaseMs, heartbeatMs, claims } = workerData as LeaseThreadData
const table = new ClaimTable(claims)
const db = connect({ ...connection, max: 1, applicationName: `${connection.applicationName ?? 'holdfast'}-leases` })
let failures = 0

const say = (message: FromLeaseThread): void => parentPort?.postMessage(message)

async function beat(): Promise<void> {
  // A step that has outrun its timeout keeps its claim until it ends, but its lease is left to run out.
  const { ids, epochs } = table.held(monotonicMs())
  for (let from = 0; from < ids.length; from += BATCH) {
    const rows = await heartbeat(db, {
      ids: ids.slice(from, from + BATCH) as InstanceId[],
      epochs: epochs.slice(from, from + BATCH),
      leaseMs,
    })
    const claim = ({ id, claim_epoch: epoch }: { id: InstanceId; claim_epoch: string }): { id: InstanceId; epoch: string } => ({
      id,
      epoch,
    })
    if (rows.length > 0)
      say({ lost: rows.filter((row) => !row.cancelling).map(claim), cancelling: rows.filter((row) => row.cancelling).map(claim) })
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

parentPort?.on('message', () => {
  clearTimeout(timer)
  void db.destroy().finally(() => parentPort?.close())
})
