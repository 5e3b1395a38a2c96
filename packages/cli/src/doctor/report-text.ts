import { plural } from './figures.ts'
import type { CheckedInvariant, Report } from './examine.ts'
import type { Finding, Section } from './finding.ts'

/** The report for people: a line for each invariant and each section, below it what is wrong and what to do. */
export function reportText({ database, invariants, sections, healthy }: Report): string {
  const { server, database: name, login, standby } = database
  const head = `PostgreSQL ${server}${standby ? ' (a standby)' : ''}, database ${name}, as ${login}`
  return [
    head,
    ...block('invariants', invariants.flatMap(invariantLines)),
    ...block('health', sections.flatMap(sectionLines)),
    '',
    summary(invariants, sections, healthy),
  ].join('\n')
}

const block = (title: string, lines: readonly string[]): readonly string[] => (lines.length === 0 ? [] : ['', title, ...lines])

function invariantLines({ id, statement, severity, violations, sample }: CheckedInvariant): readonly string[] {
  const figure = violations === null ? '?' : violations === 100 ? '100+' : String(violations)
  const verdict = violations === null ? 'unknown' : violations === 0 ? 'ok' : severity
  return [
    `  ${id.padEnd(4)} ${verdict.padEnd(8)} ${figure.padStart(4)}  ${statement}`,
    ...sample.map((row) => `                       ${JSON.stringify(row)}`),
  ]
}

function sectionLines({ title, verdict, facts, findings }: Section): readonly string[] {
  return [`  ${title.padEnd(22)} ${verdict.padEnd(8)} ${facts.join('; ')}`.trimEnd(), ...findings.flatMap(findingLines)]
}

const findingLines = ({ code, severity, what, remedy }: Finding): readonly string[] => [
  `    ${severity} ${code}: ${what}`,
  `      do: ${remedy}`,
]

function summary(invariants: readonly CheckedInvariant[], sections: readonly Section[], healthy: boolean): string {
  const findings = sections.flatMap((section) => section.findings)
  const of = (severity: Finding['severity']): number => findings.filter((finding) => finding.severity === severity).length
  const violated = invariants.filter(({ violations }) => violations !== null && violations > 0).length
  const figures = `${plural(violated, 'invariant')} violated, ${plural(of('error'), 'error')}, ${plural(of('warning'), 'warning')}`
  return `${healthy ? 'healthy' : 'NOT HEALTHY'}: ${figures}`
}
