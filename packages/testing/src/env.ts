// The one place where this package reads the environment, and writes to it what the workers of a test runner inherit.

const NAME = 'HOLDFAST_TEST_DATABASE_URL'

/**
 * A PostgreSQL (15–18) to make the test databases on, as a superuser: for CI with a service of its own, and what the global setup tells the workers of a test
 * runner. Absent: each process starts an embedded server at its first `testEngine()`.
 */
export const readTestDatabaseUrl = (): string | undefined => process.env[NAME] || undefined

export const shareTestDatabaseUrl = (url: string): void => void (process.env[NAME] = url)
export const unshareTestDatabaseUrl = (): void => void delete process.env[NAME]

/** For a Node of our own: what a test runner wants of its processes (loaders, a debugger's port) is not meant for it. */
export function environmentOfKeeper(): NodeJS.ProcessEnv {
  const { NODE_OPTIONS: _options, ...rest } = process.env
  return rest
}
