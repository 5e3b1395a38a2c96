// The one place where the tests' machinery reads the environment.

/** An existing server (15–18, login a superuser) to test on instead of the embedded one. */
export const readTestDatabaseUrl = (): string | undefined => process.env['HOLDFAST_TEST_DATABASE_URL'] || undefined
