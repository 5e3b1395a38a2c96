import type { Credential, CredentialList, IssuedCredential } from '@holdfast/contracts'
import type { Command } from 'commander'
import { table } from '../answer.ts'
import { pathOf } from '../api.ts'
import { addCommand, addGroup, choice, type Context, type Host } from '../command.ts'
import type { GlobalOptions } from '../session.ts'

interface TokenOptions {
  readonly project: string
}
const ofProject = (command: Command): Command => command.option('--project <name>', 'of this project', 'default')

export function addToken(program: Command, host: Host): void {
  const list = {
    summary: 'Show, create and revoke the tokens of a project',
    run: async ({ session }: Context, options: TokenOptions & GlobalOptions) => {
      const path = pathOf`/manage/v1/projects/${options.project}/credentials`
      const { credentials } = await session.manage(options).get<CredentialList>(path)
      return { document: { credentials }, text: credentialTable(credentials) }
    },
  }
  const group = addGroup<TokenOptions>(program, host, {
    ...list,
    name: 'token',
    examples: ['token --project shop', 'token create --project shop --access read_only --label dashboard', 'token revoke 7 --project shop'],
    configure: ofProject,
  })
  addCommand<TokenOptions>(group, host, { ...list, name: 'list', summary: 'Show tokens, the same as `token`', examples: ['token list'] })
  addCommand<TokenOptions & { readonly access: string; readonly label?: string }>(group, host, {
    name: 'create',
    summary: 'Create a token; it is shown once, and only its hash is kept',
    examples: ['token create --project shop --access read_only --label dashboard'],
    configure: (command) =>
      command
        .addOption(choice('--access <access>', 'what it may do', ['read_only', 'read_write']).default('read_write'))
        .option('--label <text>', 'for whom it is'),
    run: async ({ session }, options) => {
      const body = { access: options.access, ...(options.label === undefined ? {} : { label: options.label }) }
      const path = pathOf`/manage/v1/projects/${options.project}/credentials`
      const issued = await session.manage(options).post<IssuedCredential>(path, body)
      return { document: issued, text: issued.token }
    },
  })
  addCommand<TokenOptions>(group, host, {
    name: 'revoke',
    summary: 'Revoke a token, from the next request on',
    examples: ['token revoke 7 --project shop'],
    configure: (command) => command.argument('<id>', 'id of the token, from `token list`'),
    run: async ({ session }, options, [id]) => {
      const path = pathOf`/manage/v1/projects/${options.project}/credentials/${String(id)}/revoke`
      const credential = await session.manage(options).post<Credential>(path)
      return { document: credential, text: credentialTable([credential]) }
    },
  })
}

const credentialTable = (credentials: readonly Credential[]): string =>
  table(
    ['id', 'access', 'label', 'created', 'revoked'],
    credentials.map((credential) => [credential.id, credential.access, credential.label, credential.created_at, credential.revoked_at]),
    'no token: create one with `holdfast token create`',
  )
