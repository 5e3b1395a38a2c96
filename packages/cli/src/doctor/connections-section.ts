import { getConnectionUse } from '@holdfast/queries'
import { count, percent, plural } from './figures.ts'
import type { Finding, SectionDefinition } from './finding.ts'

/** Connections of a process outside its pool: one to listen on, one for heart-beats. */
const BESIDE_POOL = 2
const MUCH = 0.8
const NEARLY_ALL = 0.95

/** Connections in use, and what the processes may open at most. */
export const connectionsSection: SectionDefinition = {
  name: 'connections',
  title: 'connections',
  async examine({ db }) {
    const [row] = await getConnectionUse(db, {})
    if (row === undefined) throw new Error('the server said nothing about its connections')
    const { used, available, pool_max: pools, processes } = row
    const findings: Finding[] = []
    const share = used / available
    if (share >= MUCH) {
      findings.push({
        code: 'connections_used',
        severity: share >= NEARLY_ALL ? 'error' : 'warning',
        what: `${count(used)} of ${count(available)} connections are in use, ${percent(share)}`,
        value: used,
        remedy: 'raise max_connections, lower HOLDFAST_POOL_MAX, or put a pooling proxy in between (HOLDFAST_PREPARE=off)',
      })
    }
    const most = pools + processes * BESIDE_POOL
    if (most > available) {
      findings.push({
        code: 'pools_exceed',
        severity: 'warning',
        what: `${plural(processes, 'process', 'processes')} may open up to ${count(most)} connections, and the server has ${count(available)}`,
        value: most,
        remedy: 'under load some will be refused: lower HOLDFAST_POOL_MAX or the replicas, or raise max_connections',
      })
    }
    return { findings, facts: [`${count(used)} of ${count(available)} in use, pools may take ${count(most)}`] }
  },
}
