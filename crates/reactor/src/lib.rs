//! One polling thread per core: tasks, io_uring, timers, mailboxes and the idle policy.
//!
//! A [`ReactorHandle`] starts a thread and mails closures to it. On that thread [`Local`] holds the
//! [`Task`]s. Each task is polled by [`Task::turn`] for as long as it finds work. A task without work for the
//! spin time is put to sleep *by itself*, so that idle tasks cost a busy neighbour nothing. When no task is
//! left to poll, the thread sleeps in the kernel.
//!
//! The order of one turn: completions of io_uring, active tasks, mail, timers, one submit.
//!
//! # Operations in flight
//!
//! The kernel writes to memory that belongs to a task's commands until an operation has completed. So a task
//! is not freed before its last completion: see [`Local::remove`].
//!
//! # Moving
//!
//! A task is on one reactor at each moment, and can move from one to another at work: see
//! [`TaskHandle::move_to`].

mod clock;
mod config;
mod counters;
mod deadlines;
mod handle;
mod io;
mod local;
mod mailbox;
mod moving;
mod nvme;
mod overdue;
mod panic;
pub mod park;
mod reactor;
mod sentinel;
mod spin;
mod task;
mod tasks;
mod timed;
mod watch;

pub use clock::now_ns;
pub use config::{IdlePolicy, ReactorConfig};
pub use counters::{Counters, Progress};
pub use handle::{CALL_LIMIT, ReactorGone, ReactorHandle};
pub use io::{CommandFile, FileSlot, INTERRUPTED, Io, MAX_SEGMENTS, Results, WriteFlags, try_nvme};
pub use local::Local;
pub use mailbox::MailboxFull;
pub use moving::{Immovable, TaskHandle};
pub use nvme::{IDENTIFY_BYTES, NvmeCommand, NvmeQueue, identify, namespace_id};
pub use panic::end_with_a_panic;
pub use rustix::event::PollFlags;
pub use rustix::fs::FallocateFlags;
pub use sentinel::Sentinel;
pub use task::{Arm, MAX_TASKS, Task, TaskId};
pub use watch::{Absence, Turn, Watched};
