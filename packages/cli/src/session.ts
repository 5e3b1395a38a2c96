import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { HoldfastClient } from '@holdfast/client'
import { Api } from './api.ts'
import type { CliEnv } from './env.ts'
import { UsageError } from './exit-code.ts'
import { findLocalSystem, type LocalSystem } from './local-system.ts'

/** Options that every command knows. */
export interface GlobalOptions {
  readonly json?: boolean
  readonly url?: string
  readonly token?: string
  readonly manageUrl?: string
  readonly operatorToken?: string
  readonly databaseUrl?: string
}

/** Where a command speaks to: options before the environment before the system that `npm start` runs here. */
export class Session {
  readonly #env: CliEnv
  readonly #cwd: string
  #local: { readonly found: LocalSystem | undefined } | undefined

  constructor(env: CliEnv, cwd: string) {
    this.#env = env
    this.#cwd = cwd
  }

  client(options: GlobalOptions): HoldfastClient {
    return new HoldfastClient(this.#project(options))
  }

  /** The API of a project, for what the client has no method for. */
  api(options: GlobalOptions): Api {
    return new Api(this.#project(options))
  }

  manage(options: GlobalOptions): Api {
    return new Api(
      this.#listener(
        {
          what: 'the management API',
          url: options.manageUrl ?? this.#env.manageUrl,
          token: options.operatorToken ?? this.#env.operatorToken,
          options: ['--manage-url or HOLDFAST_MANAGE_URL', '--operator-token or HOLDFAST_OPERATOR_TOKEN'],
        },
        'manageUrl',
        'operatorToken',
      ),
    )
  }

  databaseUrl({ databaseUrl }: GlobalOptions): string {
    const url = databaseUrl ?? this.#env.databaseUrl ?? this.#system?.databaseUrl
    if (url === undefined)
      throw new UsageError(
        'no database is known: give --database-url or HOLDFAST_DATABASE_URL (postgres://login@host:5432/database), or run npm start on this machine',
      )
    if (!/^postgres(ql)?:\/\//.test(url))
      throw new UsageError('the database must be a URL that starts with postgres://, as in postgres://login@host:5432/database')
    return url
  }

  /** Folder of the migrations: those of the checkout, unless told otherwise. */
  migrations(given: string | undefined): string {
    const folder = given ?? this.#env.migrations ?? join(import.meta.dirname, '../../../migrations')
    if (!existsSync(folder))
      throw new UsageError(
        `there is no folder ${folder} with migrations: give --migrations or HOLDFAST_MIGRATIONS, the folder of 0001_….sql`,
      )
    return folder
  }

  #project(options: GlobalOptions): { url: string; token: string } {
    return this.#listener(
      {
        what: 'the API',
        url: options.url ?? this.#env.url,
        token: options.token ?? this.#env.token,
        options: ['--url or HOLDFAST_URL', '--token or HOLDFAST_TOKEN'],
      },
      'apiUrl',
      'token',
    )
  }

  #listener(given: Given, localUrl: 'apiUrl' | 'manageUrl', localToken: 'token' | 'operatorToken'): { url: string; token: string } {
    const [urlOptions, tokenOptions] = given.options
    const url = given.url ?? this.#system?.[localUrl]
    if (url === undefined)
      throw new UsageError(`no address of ${given.what} is known: give ${urlOptions}, or run npm start on this machine`)
    if (!URL.canParse(url) || !/^https?:\/\//.test(url))
      throw new UsageError(`${JSON.stringify(url)} is no address of ${given.what}: expected one like http://127.0.0.1:7400`)
    // The token of the local system is for the local system: it is not sent to an address that somebody has named.
    const token =
      given.token ?? (given.url === undefined || given.url === this.#system?.[localUrl] ? this.#system?.[localToken] : undefined)
    if (token === undefined) throw new UsageError(`no token for ${given.what} is known: give ${tokenOptions}`)
    return { url, token }
  }

  get #system(): LocalSystem | undefined {
    this.#local ??= { found: findLocalSystem(this.#env.home, this.#cwd) }
    return this.#local.found
  }
}

interface Given {
  readonly what: string
  readonly url: string | undefined
  readonly token: string | undefined
  readonly options: readonly [url: string, token: string]
}
