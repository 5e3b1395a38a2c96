import {
  CreateProjectRequest,
  Credential,
  CredentialList,
  EnqueueBatchRequest,
  EnqueueBatchResponse,
  EnqueueRequest,
  EnqueueResponse,
  History,
  Instance,
  InstanceList,
  InstanceListQuery,
  IssueCredentialRequest,
  IssuedCredential,
  NotSettled,
  ProcessList,
  Project,
  ProjectList,
  QueueList,
  QueueState,
  SignalRequest,
  SignalResponse,
  WaitRequest,
} from '@holdfast/contracts'
import type { Route } from '@holdfast/host'

/** Every operation of the public listener, as its OpenAPI document lists it; a test compares this list with what is really routed. */
export const apiRoutes: readonly Route[] = [
  {
    method: 'post',
    path: '/v1/instances',
    operationId: 'enqueueInstance',
    summary: 'Insert an instance of a machine, or find the one that occupies its correlation key.',
    tag: 'instances',
    body: EnqueueRequest,
    responses: {
      201: { description: 'Inserted.', schema: EnqueueResponse },
      200: { description: 'The key is occupied.', schema: EnqueueResponse },
    },
    refusals: ['invalid_instance', 'forbidden', 'unknown_machine', 'instance_conflict'],
  },
  {
    method: 'post',
    path: '/v1/instances/batch',
    operationId: 'enqueueInstances',
    summary: 'Insert up to 10,000 instances in one transaction.',
    tag: 'instances',
    body: EnqueueBatchRequest,
    responses: { 201: { description: 'Inserted, but for duplicates.', schema: EnqueueBatchResponse } },
    refusals: ['invalid_instance', 'forbidden', 'unknown_machine', 'instance_conflict'],
  },
  {
    method: 'get',
    path: '/v1/instances',
    operationId: 'listInstances',
    summary: 'List instances, newest first.',
    tag: 'instances',
    query: InstanceListQuery,
    responses: { 200: { description: 'A page.', schema: InstanceList } },
    refusals: ['invalid_body', 'invalid_instance'],
  },
  {
    method: 'get',
    path: '/v1/instances/{id}',
    operationId: 'getInstance',
    summary: 'Read one instance.',
    tag: 'instances',
    responses: { 200: { description: 'The instance.', schema: Instance } },
    refusals: ['not_found'],
  },
  {
    method: 'get',
    path: '/v1/instances/{id}/history',
    operationId: 'getHistory',
    summary: 'What an instance has done, step by step.',
    tag: 'instances',
    responses: { 200: { description: 'Its transitions, oldest first.', schema: History } },
    refusals: ['not_found'],
  },
  {
    method: 'post',
    path: '/v1/instances/{id}/wait',
    operationId: 'waitForInstance',
    summary: 'Wait until an instance has ended or parked.',
    tag: 'instances',
    body: WaitRequest,
    responses: { 200: { description: 'The instance.', schema: Instance }, 408: { description: 'not_settled', schema: NotSettled } },
    refusals: ['invalid_instance', 'not_found'],
  },
  {
    method: 'post',
    path: '/v1/signals',
    operationId: 'sendSignal',
    summary: 'Put a signal into the inbox of a live instance.',
    tag: 'signals',
    body: SignalRequest,
    responses: { 202: { description: 'Stored, now or before.', schema: SignalResponse } },
    refusals: ['invalid_signal', 'forbidden', 'not_found'],
  },
  {
    method: 'get',
    path: '/v1/queues',
    operationId: 'listQueues',
    summary: "The project's queues and what waits in them.",
    tag: 'queues',
    responses: { 200: { description: 'The queues.', schema: QueueList } },
    refusals: [],
  },
]

const project = (
  method: 'get' | 'post',
  path: string,
  operationId: string,
  summary: string,
  rest: Pick<Route, 'body' | 'responses' | 'refusals'>,
): Route => ({
  method,
  path: `/manage/v1${path}`,
  operationId,
  summary,
  tag: 'management',
  ...rest,
})

/** Every operation of the management listener. */
export const manageRoutes: readonly Route[] = [
  project('post', '/projects', 'createProject', 'Create a project.', {
    body: CreateProjectRequest,
    responses: { 201: { description: 'Created.', schema: Project } },
    refusals: ['invalid_project', 'project_conflict'],
  }),
  project('get', '/projects', 'listProjects', 'List projects.', {
    responses: { 200: { description: 'All of them.', schema: ProjectList } },
    refusals: [],
  }),
  project('post', '/projects/{name}/suspend', 'suspendProject', 'Refuse the tokens of a project from now on.', {
    responses: { 200: { description: 'The project.', schema: Project } },
    refusals: ['not_found'],
  }),
  project('post', '/projects/{name}/resume', 'resumeProject', 'Let the tokens of a project in again.', {
    responses: { 200: { description: 'The project.', schema: Project } },
    refusals: ['not_found'],
  }),
  project('post', '/projects/{name}/credentials', 'issueCredential', 'Issue a bearer token; it is shown once.', {
    body: IssueCredentialRequest,
    responses: { 201: { description: 'The token.', schema: IssuedCredential } },
    refusals: ['invalid_credential', 'not_found'],
  }),
  project('get', '/projects/{name}/credentials', 'listCredentials', 'List the credentials of a project, without their tokens.', {
    responses: { 200: { description: 'All of them.', schema: CredentialList } },
    refusals: ['not_found'],
  }),
  project('post', '/projects/{name}/credentials/{id}/revoke', 'revokeCredential', 'Revoke a token, from the next request on.', {
    responses: { 200: { description: 'The credential.', schema: Credential } },
    refusals: ['not_found'],
  }),
  project('get', '/queues', 'listAllQueues', 'Queues of all projects and what waits in them.', {
    responses: { 200: { description: 'The queues.', schema: QueueList } },
    refusals: [],
  }),
  project('post', '/queues/{name}/pause', 'pauseQueue', 'Claim nothing more from a queue.', {
    responses: { 200: { description: 'The queue.', schema: QueueState } },
    refusals: ['invalid_queue'],
  }),
  project('post', '/queues/{name}/resume', 'resumeQueue', 'Claim from a queue again.', {
    responses: { 200: { description: 'The queue.', schema: QueueState } },
    refusals: ['invalid_queue'],
  }),
  project('get', '/processes', 'listProcesses', 'Running processes and how long each has been silent.', {
    responses: { 200: { description: 'All of them.', schema: ProcessList } },
    refusals: [],
  }),
]
