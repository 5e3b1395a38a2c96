// The one place where the command reads the environment.

export interface CliEnv {
  /** Of the API. */
  readonly url: string | undefined
  readonly token: string | undefined
  /** Of the management API. */
  readonly manageUrl: string | undefined
  readonly operatorToken: string | undefined
  readonly databaseUrl: string | undefined
  /** Folder of the migrations, where they do not lie beside this package. */
  readonly migrations: string | undefined
  /** Folder that `npm start` keeps its `dev.json` in. */
  readonly home: string | undefined
}

export const readCliEnv = (source: Readonly<Record<string, string | undefined>> = process.env): CliEnv => ({
  url: source['HOLDFAST_URL'] || undefined,
  token: source['HOLDFAST_TOKEN'] || undefined,
  manageUrl: source['HOLDFAST_MANAGE_URL'] || undefined,
  operatorToken: source['HOLDFAST_OPERATOR_TOKEN'] || undefined,
  databaseUrl: source['HOLDFAST_DATABASE_URL'] || undefined,
  migrations: source['HOLDFAST_MIGRATIONS'] || undefined,
  home: source['HOLDFAST_HOME'] || undefined,
})
