import type { Project, ProjectList } from '@holdfast/contracts'
import type { Command } from 'commander'
import { table } from '../answer.ts'
import { pathOf } from '../api.ts'
import { addCommand, addGroup, type Context, type Host } from '../command.ts'
import type { GlobalOptions } from '../session.ts'

export function addProject(program: Command, host: Host): void {
  const list = {
    summary: 'Show, create, suspend and resume projects',
    run: async ({ session }: Context, options: GlobalOptions) => {
      const { projects } = await session.manage(options).get<ProjectList>('/manage/v1/projects')
      return { document: { projects }, text: projectTable(projects) }
    },
  }
  const group = addGroup(program, host, { ...list, name: 'project', examples: ['project', 'project create shop', 'project suspend shop'] })
  addCommand(group, host, { ...list, name: 'list', summary: 'Show projects, the same as `project`', examples: ['project list'] })
  addCommand(group, host, {
    name: 'create',
    summary: 'Create a project; give it a token with `token create`',
    examples: ['project create shop'],
    configure: (command) => command.argument('<name>', 'lower-case letters, digits, - and _'),
    run: async ({ session }, options, [name]) =>
      projectAnswer(await session.manage(options).post<Project>('/manage/v1/projects', { name: String(name) })),
  })
  addCommand(group, host, {
    name: 'suspend',
    summary: 'Refuse the tokens of a project from now on; what is queued goes on running',
    examples: ['project suspend shop'],
    configure: (command) => command.argument('<name>', 'the project'),
    run: async ({ session }, options, [name]) =>
      projectAnswer(await session.manage(options).post<Project>(pathOf`/manage/v1/projects/${String(name)}/suspend`)),
  })
  addCommand(group, host, {
    name: 'resume',
    summary: 'Let the tokens of a project in again',
    examples: ['project resume shop'],
    configure: (command) => command.argument('<name>', 'the project'),
    run: async ({ session }, options, [name]) =>
      projectAnswer(await session.manage(options).post<Project>(pathOf`/manage/v1/projects/${String(name)}/resume`)),
  })
}

const projectAnswer = (project: Project) => ({ document: project, text: projectTable([project]) })

const projectTable = (projects: readonly Project[]): string =>
  table(
    ['project', 'state', 'created'],
    projects.map((project) => [project.name, project.suspended ? 'suspended' : 'open', project.created_at]),
    'no project: create one with `holdfast project create`',
  )
