import {
  explainStatement,
  hotStatements,
  listInvalidIndexes,
  listTableHealth,
  type PlanNode,
  sqlState,
  type TableHealthRow,
} from '@holdfast/queries'
import { age } from '../answer.ts'
import { count } from './figures.ts'
import type { Examination, Finding, SectionDefinition } from './finding.ts'

/** Below this a scan costs less than a look-up, and stale statistics mislead nobody. */
const LARGE_ROWS = 10_000
/** Autovacuum analyses at a twentieth of the rows (migrations/0001_engine.sql); four times as much says that it does not keep up. */
const STALE_SHARE = 0.2

/** Whether hot statements find rows by index, and whether the planner knows the tables that it plans for. */
export const plansSection: SectionDefinition = {
  name: 'plans',
  title: 'plans and statistics',
  async examine(examination) {
    const tables = await listTableHealth(examination.db, {})
    const invalid = (await listInvalidIndexes(examination.db, {})).map(
      ({ index, table }): Finding => ({
        code: 'index_invalid',
        severity: 'error',
        what: `the index ${index} of ${table} is not valid: it costs every write and no plan uses it`,
        value: null,
        remedy: `REINDEX INDEX CONCURRENTLY ${index}, or DROP INDEX CONCURRENTLY ${index} if it is a leftover (docs/indexes.md lists ours)`,
      }),
    )
    const { scans, explained, hidden } = await findScans(examination, tables)
    return {
      findings: [...invalid, ...scans, ...hidden, ...tables.flatMap((table) => statisticsFindings(table, examination.neglectedMs))],
      facts: [`${explained} hot statements explained`],
    }
  },
}

async function findScans({ engineDb }: Examination, tables: readonly TableHealthRow[]) {
  const large = new Map(tables.filter((table) => rowsOf(table) >= LARGE_ROWS).map((table) => [table.table, rowsOf(table)]))
  const scans: Finding[] = []
  const refused: string[] = []
  const names = hotStatements()
  for (const name of names) {
    let plan: PlanNode
    try {
      plan = await explainStatement(engineDb, name)
    } catch (error) {
      if (sqlState(error)?.state !== '42501') throw error
      refused.push(name)
      continue
    }
    for (const relation of scannedBy(plan)) {
      const rows = large.get(relation)
      if (rows === undefined) continue
      scans.push({
        code: 'sequential_scan',
        severity: 'error',
        what: `${name} reads all of ${relation} (about ${count(rows)} rows) each time`,
        value: rows,
        remedy: `an index of it is missing or not valid: compare \\d holdfast.${relation} with docs/indexes.md`,
      })
    }
  }
  return { scans, explained: names.length - refused.length, hidden: hiddenFinding(refused) }
}

const hiddenFinding = (refused: readonly string[]): readonly Finding[] =>
  refused.length === 0
    ? []
    : [
        {
          code: 'not_permitted',
          severity: 'info',
          what: `the plans of ${refused.length} statements were not looked at: EXPLAIN asks for the right to run them`,
          value: refused.length,
          remedy: 'connect as the owner of the schema to see them; a login that may only read never does',
        },
      ]

/** Tables that the plan walks from end to end. */
function scannedBy(plan: PlanNode): ReadonlySet<string> {
  const found = new Set<string>()
  const visit = (node: PlanNode): void => {
    if (node['Node Type'] === 'Seq Scan' && node['Relation Name'] !== undefined) found.add(node['Relation Name'])
    node.Plans?.forEach(visit)
  }
  visit(plan)
  return found
}

const rowsOf = ({ planned_rows: planned, live }: TableHealthRow): number => Math.max(planned, live)

function statisticsFindings(table: TableHealthRow, neglectedMs: number): readonly Finding[] {
  const rows = rowsOf(table)
  if (rows < LARGE_ROWS) return []
  const remedy = `ANALYZE holdfast.${table.table}; see that autovacuum runs and that nothing holds it up`
  if (table.since_analyze_ms === null) {
    const what = `${table.table} has about ${count(rows)} rows and was never analysed: its plans are guesses`
    return [{ code: 'never_analyzed', severity: 'warning', what, value: rows, remedy }]
  }
  const share = table.modified_since_analyze / rows
  // A busy table changes by as much within a second; what counts is that nobody comes to look.
  if (share < STALE_SHARE || table.since_analyze_ms < neglectedMs) return []
  const what = `${count(table.modified_since_analyze)} rows of ${table.table} have changed since it was analysed ${age(table.since_analyze_ms)} ago, of about ${count(rows)}`
  return [{ code: 'statistics_stale', severity: 'warning', what, value: table.modified_since_analyze, remedy }]
}
