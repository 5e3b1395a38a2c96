// What one source file imports, reads and says, from its syntax tree: a regular expression takes a comment or a test's made-up source for the real thing.
import { type ESTree, parseSync, Visitor } from 'rolldown/utils'

export interface SourceFacts {
  readonly imports: readonly { readonly specifier: string; readonly line: number }[]
  /** Lines that read `process.env`, however it is spelled. */
  readonly environmentReads: readonly number[]
  /** Lines with a `sql` template of Kysely, or a text that is a statement. */
  readonly sql: readonly number[]
}

const UPPER =
  /^(?:SELECT\s|INSERT\s+INTO\s|UPDATE\s+\S+.*\sSET\s|DELETE\s+FROM\s|MERGE\s+INTO\s|WITH\s+(?:RECURSIVE\s+)?\w+.*\sAS\s.*\(|TRUNCATE\s|LOCK\s+TABLE\s|COPY\s+\w+.*\s(?:FROM|TO)\s|(?:CREATE|ALTER|DROP)\s+(?:TABLE|INDEX|UNIQUE|TYPE|ROLE|DATABASE|SCHEMA|FUNCTION|TRIGGER|EXTENSION|VIEW)\s)/s
const LOWER =
  /^(?:select\s+[\w*.,\s()"']+\sfrom\s+\w|insert\s+into\s+\S+\s*(?:\(|select\s|values\s)|update\s+\S+\s+set\s|delete\s+from\s+\w)/s
/** Commands that are ordinary words elsewhere; a statement only where they are handed to `.query()`. */
const COMMAND =
  /^(?:BEGIN|START|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|SET|SHOW|LISTEN|UNLISTEN|NOTIFY|CALL|DO|VACUUM|ANALYZE|EXPLAIN|GRANT|REVOKE)\b/i
const COMMENTS = /^(?:\s+|\/\*.*?\*\/|--[^\n]*\n)*/s

const isStatement = (text: string): boolean => {
  const bare = text.replace(COMMENTS, '')
  return UPPER.test(bare) || LOWER.test(bare)
}

/** @throws SyntaxError for a file that cannot be parsed: what was not read must not pass. */
export function factsOf(file: string, text: string): SourceFacts {
  const { program, module, errors } = parseSync(file, text)
  const [error] = errors
  if (error !== undefined) throw new SyntaxError(`${file} cannot be parsed: ${error.message}`)

  const lineAt = lineFinder(text)
  const imports: { specifier: string; line: number }[] = []
  const environmentReads: number[] = []
  const sql: number[] = []
  const addImport = (specifier: string, start: number): void => void imports.push({ specifier, line: lineAt(start) })

  for (const { moduleRequest } of module.staticImports) addImport(moduleRequest.value, moduleRequest.start)
  for (const { entries } of module.staticExports)
    for (const { moduleRequest } of entries) if (moduleRequest !== null) addImport(moduleRequest.value, moduleRequest.start)
  for (const { moduleRequest, entries } of module.staticImports) {
    const isProcess = moduleRequest.value === 'node:process' || moduleRequest.value === 'process'
    for (const { importName } of entries) if (isProcess && importName.name === 'env') environmentReads.push(lineAt(moduleRequest.start))
  }

  new Visitor({
    ImportExpression: ({ source }) => {
      const specifier = textOf(source)
      if (specifier !== undefined) addImport(specifier, source.start)
    },
    TSImportType: ({ source }) => addImport(source.value, source.start),
    MemberExpression: (node) => {
      if (propertyOf(node) === 'env' && isProcess(node.object)) environmentReads.push(lineAt(node.start))
      if (node.object.type === 'Identifier' && node.object.name === 'sql' && propertyOf(node) === 'raw') sql.push(lineAt(node.start))
    },
    VariableDeclarator: ({ id, init }) => {
      if (id.type !== 'ObjectPattern' || init === null || !isProcess(init)) return
      const env = id.properties.some(
        (property) => property.type === 'Property' && property.key.type === 'Identifier' && property.key.name === 'env',
      )
      if (env) environmentReads.push(lineAt(id.start))
    },
    TaggedTemplateExpression: ({ tag, start }) => {
      const name = tag.type === 'Identifier' ? tag.name : tag.type === 'MemberExpression' ? propertyOf(tag) : undefined
      if (name === 'sql') sql.push(lineAt(start))
    },
    Literal: ({ value, start }) => {
      if (typeof value === 'string' && isStatement(value)) sql.push(lineAt(start))
    },
    TemplateLiteral: (node) => {
      if (isStatement(textOf(node) ?? '')) sql.push(lineAt(node.start))
    },
    CallExpression: ({ callee, arguments: [first] }) => {
      if (callee.type !== 'MemberExpression' || propertyOf(callee) !== 'query' || first === undefined) return
      if (COMMAND.test((textOf(first) ?? '').replace(COMMENTS, ''))) sql.push(lineAt(first.start))
    },
  }).visit(program)

  return { imports: uniqueImports(imports), environmentReads: unique(environmentReads), sql: unique(sql) }
}

const unique = (lines: readonly number[]): number[] => [...new Set(lines)].sort((a, b) => a - b)
/** `export { a, b } from` lists its source once a name. */
const uniqueImports = (imports: readonly { specifier: string; line: number }[]): { specifier: string; line: number }[] => [
  ...new Map(imports.map((each) => [`${each.line} ${each.specifier}`, each])).values(),
]

const isProcess = (node: ESTree.Expression | ESTree.Super): boolean =>
  (node.type === 'Identifier' && node.name === 'process') || (node.type === 'MemberExpression' && propertyOf(node) === 'process')

function propertyOf(node: ESTree.MemberExpression): string | undefined {
  const { property } = node
  if (!node.computed) return property.type === 'Identifier' ? property.name : undefined
  return property.type === 'Literal' && typeof property.value === 'string' ? property.value : undefined
}

/** The text of a literal; `x` stands for what a template puts in. */
function textOf(node: ESTree.Expression | ESTree.SpreadElement): string | undefined {
  if (node.type === 'Literal') return typeof node.value === 'string' ? node.value : undefined
  return node.type === 'TemplateLiteral' ? node.quasis.map(({ value }) => value.cooked ?? value.raw).join('x') : undefined
}

function lineFinder(text: string): (offset: number) => number {
  const starts = [...text.matchAll(/\n/g)].map(({ index }) => index)
  return (offset) => starts.filter((end) => end < offset).length + 1
}
