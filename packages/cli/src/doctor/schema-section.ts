import { getDatabaseState, listMigrations } from '@holdfast/queries'
import { readMigrations } from '@holdfast/schema'
import type { Finding, SectionDefinition } from './finding.ts'

/** The migrations that the database has, against those that this code came with. */
export const schemaSection: SectionDefinition = {
  name: 'schema',
  title: 'schema',
  async examine({ db, migrations }) {
    const files = await readMigrations(migrations)
    const [state] = await getDatabaseState(db, {})
    if (state?.migrated !== true) return { findings: [NOT_MIGRATED] }
    const applied = await listMigrations(db, {})
    const known = new Map(files.map((file) => [file.version, file]))
    const have = new Set(applied.map(({ version }) => version))
    const findings: Finding[] = []

    const missing = files.filter(({ version }) => !have.has(version))
    if (missing.length > 0) {
      findings.push({
        code: 'migration_unapplied',
        severity: 'error',
        what: `${missing.length} migrations of this code are not applied: ${names(missing)}`,
        value: missing.length,
        remedy: 'holdfast migrate --dry-run, then holdfast migrate; processes of this version are not ready before',
      })
    }
    const unknown = applied.filter(({ version }) => !known.has(version))
    if (unknown.length > 0) {
      const breaking = unknown.some(({ compatibility }) => compatibility === 'breaking')
      findings.push({
        code: 'migration_unknown',
        severity: breaking ? 'error' : 'warning',
        what: `the database has ${unknown.length} migrations that this code does not know: ${names(unknown)}${breaking ? '; one of them is breaking' : ''}`,
        value: unknown.length,
        remedy: breaking
          ? 'deploy the version that they belong to; processes of this one are not ready'
          : 'finish the deployment of the version that they belong to',
      })
    }
    const changed = applied.filter((row) => {
      const file = known.get(row.version)
      return file !== undefined && (file.sha256 !== row.sha256 || file.name !== row.name)
    })
    if (changed.length > 0) {
      findings.push({
        code: 'migration_changed',
        severity: 'error',
        what: `${changed.length} applied migrations are not what their files say now: ${names(changed)}`,
        value: changed.length,
        remedy: 'restore the files; put a change into a migration of its own. The migrator refuses to go on before',
      })
    }
    return { findings, facts: [`version ${Math.max(0, ...have)} of ${files.length}`] }
  },
}

const NOT_MIGRATED: Finding = {
  code: 'not_migrated',
  severity: 'error',
  what: 'this database has no schema of Holdfast',
  value: null,
  remedy: 'see that --database-url names the right database; if it does, holdfast migrate',
}

const names = (migrations: readonly { readonly name: string }[]): string => {
  const shown = migrations.slice(0, 5).map(({ name }) => name)
  return shown.join(', ') + (migrations.length > shown.length ? ', …' : '')
}
