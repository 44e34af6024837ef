/** What the broker answers, as far as the console reads it; `/openapi.json` has all of it. */

export type * from "./types-pipelines";

export interface Page {
  limit: number;
  offset: number;
  total?: number;
}
export interface Counts {
  total: number;
  pending: number;
  processing: number;
  completed: number;
  deadLetter: number;
}
export interface Flow {
  pushed: number;
  popped: number;
  acked: number;
  failed: number;
  dead: number;
}
export interface Rates extends Flow {}

// Live

export interface Latency {
  p50Ms: number | null;
  p99Ms: number | null;
}
export interface LivePipeline {
  name: string;
  state: string;
  messagesPerSecond: number | null;
}
export interface LiveFigures {
  time: string;
  broker: string;
  rates: Rates;
  latency: Latency;
  latencyByKind: Record<string, Latency>;
  waitingPops: number;
  openConnections: number;
  lagSeconds: number | null;
  oldestUnacknowledgedAt: string | null;
  deadLetters: number | null;
  database: {
    connected: boolean;
    answeredInMs: number | null;
    connections: number | null;
    maxConnections: number | null;
    oldestTransactionSeconds: number | null;
  };
  brokers: { id: string; address: string; version: string; startedAt: string; messagesPerSecond: Rates }[];
  groups: { consumerGroup: string; queue: string; lagSeconds: number }[];
  pipelines: LivePipeline[];
}
export interface LivePoint extends Latency {
  time: string;
  pushed: number;
  popped: number;
  acked: number;
  failed: number;
  lagSeconds: number | null;
  deadLetters: number | null;
}
export interface LiveHistory {
  points: LivePoint[];
}
export interface Status {
  queues: number;
  partitions: number;
  messages: Counts;
  throughput: (Flow & { timestamp: string })[];
  errors: { failed: number; dead: number; expired: number };
  leases: { active: number; partitions: number };
  deadLetters: { total: number; lastHour: number };
}

// Queues

export type Options = Record<string, number | boolean>;
export interface QueueStatus {
  id: string;
  name: string;
  namespace: string;
  task: string;
  partitions: number;
  consumerGroups: number;
  messages: Counts;
  throughput: Flow;
  oldest: string | null;
  newest: string | null;
}
export interface QueueStatusList {
  queues: QueueStatus[];
  pagination: Page;
}
export interface QueueGroup {
  name: string;
  queue: string;
  partitions: number;
  lag: number;
  lagSeconds: number;
  lastConsumedAt: string | null;
  members: number;
  active: boolean;
  subscriptionMode: string;
}
export interface PartitionInfo {
  id: string;
  queue: string;
  name: string;
  createdAt: string;
  total: number;
  depth: number;
  processing: number;
  oldest: string | null;
  newest: string | null;
}
export interface QueueDetail {
  id: string;
  name: string;
  namespace: string;
  task: string;
  createdAt: string;
  partitionCount: number;
  messages: Counts;
  options: Options;
  groups: QueueGroup[];
}
export interface QueueOps {
  series: (Flow & { time: string; expired: number })[];
}

// Messages

export type MessageState = "pending" | "processing" | "completed" | "dead";
export interface MessageInfo {
  id: string;
  transactionId: string;
  partitionId: string;
  queue: string;
  partition: string;
  status: MessageState;
  traceId: string | null;
  producerSub: string | null;
  createdAt: string;
  data: unknown;
  retryCount: number;
  encrypted?: boolean;
}
export interface MessageGroup {
  consumerGroup: string;
  state: MessageState;
  tries: number;
  error: string | null;
  leasedUntil: string | null;
  /** Messages that the group has yet to complete before this one; null: it is past it. */
  ahead: number | null;
}
export interface Search {
  messages: (MessageInfo & { size: number; leftOut: boolean })[];
  scanned: number;
  stopped: "rows" | "time" | null;
  next: string | null;
}
export interface MessageDetail extends MessageInfo {
  groups: MessageGroup[];
}
export interface Trace {
  id: string;
  consumerGroup: string | null;
  eventType: string;
  traceNames: string[];
  data: unknown;
  createdAt: string;
}

// Groups

export interface Group {
  name: string;
  topics: string[];
  members: number;
  totalLag: number;
  maxTimeLag: number;
  state: "Stable" | "Lagging" | "Dead";
}
export interface GroupPartition {
  partitionId: string;
  partition: string;
  lag: number;
  lagSeconds: number;
  lastConsumedAt: string | null;
  leasedUntil: string | null;
}
export interface GroupDetail extends Group {
  queues: Record<string, QueueGroup & { partitionDetails: GroupPartition[] }>;
}
export interface GroupLag {
  everySeconds: number;
  series: { queue: string; partition: string | null; points: { time: string; lag: number; lagSeconds: number }[] }[];
}

// Streams

export interface StreamGroup {
  consumerGroup: string;
  lag: number;
  leased: number;
  done: number;
  dead: number;
  lastAckAt: string | null;
}
export interface StreamInfo {
  id: string;
  name: string;
  namespace: string;
  partitioned: boolean;
  window_type: "tumbling" | "sliding" | "session" | "count";
  window_duration_ms: number | null;
  window_slide_ms: number | null;
  window_session_gap_ms: number | null;
  window_size_count: number | null;
  window_slide_count: number | null;
  window_grace_period_ms: number;
  window_lease_timeout_ms: number;
  event_time_path: string | null;
  idle_timeout_ms: number | null;
  retry_limit: number;
  max_in_flight: number;
  emit_empty: boolean;
  watermark: string | null;
  sources: { queue: string; highestEventTime: string | null; idle: boolean; quietSince: string | null }[];
  windows: { open: number; ripe: number; closed: number };
  late: number;
  createdAt: string;
}
export interface StreamDetail extends StreamInfo {
  groups: StreamGroup[];
}
export type WindowState = "open" | "ripe" | "closed" | "waiting" | "leased" | "done" | "dead";
export interface WindowInfo {
  id: string;
  key: string;
  start: string | null;
  end: string | null;
  state: WindowState;
  messages: number;
  closedAt: string | null;
  attempt: number | null;
  leasedUntil: string | null;
  complete: boolean;
  error: string | null;
}
export interface LateSpan {
  start: string;
  end: string;
  messages: number;
}
export interface TimelineKey {
  key: string;
  windows: WindowInfo[];
  late: LateSpan[];
}
export interface StreamTimeline {
  now: string;
  watermark: string | null;
  keys: TimelineKey[];
  complete: boolean;
  next: string | null;
}
export interface WindowMessage {
  id: string;
  transactionId: string;
  partitionId: string;
  queue: string;
  partition: string;
  createdAt: string;
  data: unknown;
  size: number;
  leftOut: boolean;
}
export interface WindowDetail {
  window: WindowInfo;
  content: WindowMessage[];
  next: string | null;
  reasons: Reason[];
}
export interface LateInfo {
  messageId: string;
  transactionId: string | null;
  queue: string | null;
  partition: string | null;
  key: string;
  eventTime: string | null;
  window: { start: string; end: string } | null;
  latenessMs: number | null;
  reason: string;
  notedAt: string;
}
export interface Reason {
  code: string;
  message: string;
  remedy: string;
}
export interface Explained {
  reasons: Reason[];
  now: string;
  watermark: string | null;
}

// Dead letters

export interface DeadLetter {
  id: string;
  transactionId: string;
  partitionId: string;
  queue: string;
  partition: string;
  consumerGroup: string;
  errorMessage: string | null;
  retryCount: number;
  data: unknown;
  producerSub: string | null;
  createdAt: string;
  failedAt: string;
  encrypted?: boolean;
}
export interface DeadLetterDetail extends DeadLetter {
  cause: string;
  traceId: string | null;
}

export interface LetterError {
  queue: string;
  pattern: string;
  letters: number;
  consumerGroups: string[];
  firstFailedAt: string;
  lastFailedAt: string;
  example: string | null;
  exampleId: string;
}
export interface LetterErrors {
  errors: LetterError[];
  letters: number;
  complete: boolean;
}

// System

export interface Me {
  subject: string | null;
  role: string;
  authentication: boolean;
  insecure: boolean;
  queues: string[] | null;
  namespaces: string[] | null;
}
export interface BrokerState {
  id: string;
  hostname: string;
  pid: number;
  address: string;
  version: string;
  startedAt: string;
  seenAt: string;
  uptimeSeconds: number;
  cpuSeconds: number;
  memoryBytes: number;
  messagesPerSecond: Rates;
  waitingPops: number;
  openConnections: number;
  poolConnectionsBusy: number;
  poolConnectionsMax: number;
  backgroundFailures: Record<string, number>;
  taskRestarts: Record<string, number>;
}
export interface PostgresStats {
  serverVersion: string;
  databaseBytes: number;
  cacheHitRatio: number | null;
  connections: Record<string, number>;
  oldestTransactionSeconds: number | null;
  xminHolders: {
    pid: number;
    application: string;
    state: string | null;
    age: number;
    transactionSeconds: number | null;
  }[];
  tables: {
    table: string;
    totalBytes: number;
    tableBytes: number;
    indexBytes: number;
    liveTuples: number;
    deadTuples: number;
    lastVacuum: string | null;
  }[];
  settings: Record<string, string>;
}
export interface Maintenance {
  maintenanceMode: boolean;
  popMaintenanceMode: boolean;
  message: string;
}
export interface Settings {
  broker: string;
  settings: Record<string, { value: unknown; source: string }>;
}
export interface AuditAct {
  id: string;
  at: string;
  subject: string | null;
  role: string | null;
  address: string | null;
  action: string;
  target: string;
  details: unknown;
}
