import { listSettings, type SettingRow } from '@holdfast/queries'
import type { Finding, SectionDefinition } from './finding.ts'

interface Rule extends Pick<Finding, 'code' | 'severity' | 'remedy'> {
  readonly setting: string
  readonly wrong: (value: string) => boolean
  readonly consequence: string
}

const isOff = (value: string): boolean => value.toLowerCase() === 'off'

const rules: readonly Rule[] = [
  {
    code: 'fsync_off',
    setting: 'fsync',
    severity: 'error',
    wrong: isOff,
    consequence: 'a crash of the machine may destroy the whole database',
    remedy: 'ALTER SYSTEM SET fsync = on, then SELECT pg_reload_conf()',
  },
  {
    code: 'full_page_writes_off',
    setting: 'full_page_writes',
    severity: 'error',
    wrong: isOff,
    consequence: 'a crash of the machine may leave pages that are half old and half new',
    remedy: 'ALTER SYSTEM SET full_page_writes = on, then SELECT pg_reload_conf()',
  },
  {
    code: 'synchronous_commit_off',
    setting: 'synchronous_commit',
    severity: 'warning',
    wrong: isOff,
    consequence: 'what was answered as committed in the last moments before a crash is lost: steps run again whose end was recorded',
    remedy: 'set it to on where it is off',
  },
  {
    code: 'autovacuum_off',
    setting: 'autovacuum',
    severity: 'error',
    wrong: isOff,
    consequence: 'dead rows are never removed, and every claim walks over them',
    remedy: 'ALTER SYSTEM SET autovacuum = on, then SELECT pg_reload_conf()',
  },
  {
    code: 'track_counts_off',
    setting: 'track_counts',
    severity: 'error',
    wrong: isOff,
    consequence: 'autovacuum does not learn where it is needed, and this command reads figures that stand still',
    remedy: 'ALTER SYSTEM SET track_counts = on, then SELECT pg_reload_conf()',
  },
  {
    code: 'isolation_not_read_committed',
    setting: 'default_transaction_isolation',
    severity: 'error',
    wrong: (value) => value.toLowerCase() !== 'read committed',
    consequence: 'statements that lock and then read (docs/locks.md) would read what was true before they had the lock',
    remedy: 'reset it where it is set: every write of Holdfast runs at read committed',
  },
]

/** Settings without which the promises of docs/guarantees.md do not hold. */
export const settingsSection: SectionDefinition = {
  name: 'settings',
  title: 'settings',
  async examine({ db }) {
    const settings = await listSettings(db, {})
    return { findings: rules.flatMap((rule) => settings.filter((row) => breaks(rule, row)).map((row) => finding(rule, row))) }
  },
}

const breaks = ({ setting, wrong }: Rule, { name, value }: SettingRow): boolean => name === setting && wrong(value)

const finding = ({ code, severity, remedy, consequence }: Rule, { name, value, scope }: SettingRow): Finding => ({
  code,
  severity,
  what: `${name} is ${value}${scope === 'server' ? '' : ` for ${scope}`}: ${consequence}`,
  value: null,
  remedy,
})
