import { listTableHealth, listVacuumHolders, type TableHealthRow, type VacuumHolderRow } from '@holdfast/queries'
import { age } from '../answer.ts'
import { bytes, count, percent } from './figures.ts'
import type { Finding, SectionDefinition } from './finding.ts'

/** Fewer dead rows than this cost nothing, whatever their share. Autovacuum comes at 2,000 and a fiftieth of the rows, at 5,000 for outcomes. */
const DEAD_ROWS = 20_000
const DEAD_SHARE = 0.2
/** More than this is not what a busy minute leaves behind, however lately a vacuum has begun. */
const DEAD_SHARE_ANYWAY = 0.5
/** A pick index is walked over the dead entries of everything claimed meanwhile: minutes are felt, an hour is an outage. */
const VERY_LONG_MS = 3_600_000
/** WAL that an unread slot may keep before the disk is what fails next. */
const SLOT_WAL_BYTES = 2 ** 30

/** Dead rows, and what keeps VACUUM from removing them. */
export const bloatSection: SectionDefinition = {
  name: 'bloat',
  title: 'bloat and vacuum',
  async examine({ db, longMs, neglectedMs }) {
    const tables = await listTableHealth(db, {})
    const holders = await listVacuumHolders(db, { openMs: longMs })
    const largest = tables.slice(0, 3).map(({ table, total_bytes: size }) => `${table} ${bytes(size)}`)
    return {
      findings: [...tables.flatMap((table) => tableFindings(table, neglectedMs)), ...holders.flatMap(holderFindings)],
      facts: [`largest: ${largest.join(', ')}`],
    }
  },
}

function tableFindings(row: TableHealthRow, neglectedMs: number): readonly Finding[] {
  const { table, live, dead, since_vacuum_ms: since, autovacuum_off: off } = row
  const findings: Finding[] = []
  if (off) {
    findings.push({
      code: 'autovacuum_disabled',
      severity: 'error',
      what: `autovacuum is switched off for ${table}`,
      value: null,
      remedy: `switch it on: ALTER TABLE holdfast.${table} RESET (autovacuum_enabled)`,
    })
  }
  const share = dead / Math.max(1, live + dead)
  const neglected = since === null || since >= neglectedMs
  if (dead >= DEAD_ROWS && share >= (neglected ? DEAD_SHARE : DEAD_SHARE_ANYWAY)) {
    const last = since === null ? 'it was never vacuumed' : `vacuumed ${age(since)} ago`
    findings.push({
      code: 'dead_rows',
      severity: 'warning',
      what: `${count(dead)} rows of ${table} are dead, ${percent(share)} of it (${last})`,
      value: dead,
      remedy: `see below what holds vacuum back; if nothing does, VACUUM holdfast.${table}, and give autovacuum more workers`,
    })
  }
  return findings
}

function holderFindings(holder: VacuumHolderRow): readonly Finding[] {
  if (holder.kind === 'slot') return slotFindings(holder)
  if (holder.open_ms === null) return [] // a standby's feedback: its own long queries are to be looked for there
  const horizon = holder.age_xids === null ? '' : `; ${count(holder.age_xids)} transactions have begun since its snapshot`
  const severity = holder.open_ms >= VERY_LONG_MS ? 'error' : 'warning'
  if (holder.kind === 'prepared') {
    return [
      {
        code: 'prepared_transaction',
        severity,
        what: `the prepared transaction ${holder.id} of ${holder.who} has been open for ${age(holder.open_ms)}${horizon}`,
        value: holder.open_ms,
        remedy: `COMMIT PREPARED or ROLLBACK PREPARED '${holder.id}'; nobody else does it, and until then vacuum removes nothing newer`,
      },
    ]
  }
  return [
    {
      code: 'long_transaction',
      severity,
      what: `a transaction of ${holder.who} (pid ${holder.id}) has been open for ${age(holder.open_ms)}${horizon}`,
      value: holder.open_ms,
      remedy: `find out what it does; SELECT pg_terminate_backend(${holder.id}) ends it, idle_in_transaction_session_timeout the next one`,
    },
  ]
}

function slotFindings({ id, who, active, wal_bytes: wal }: VacuumHolderRow): readonly Finding[] {
  const kept = wal ?? 0
  if (active && kept < SLOT_WAL_BYTES) return []
  return [
    {
      code: 'replication_slot',
      severity: kept >= SLOT_WAL_BYTES ? 'error' : 'warning',
      what: `the replication slot ${id} (${who}) ${active ? 'lags' : 'is read by nobody'} and keeps ${bytes(kept)} of WAL`,
      value: kept,
      remedy: active ? 'look at its reader' : `start its reader, or SELECT pg_drop_replication_slot('${id}') if there is none any more`,
    },
  ]
}
