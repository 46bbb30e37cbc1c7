//! DH-HMAC-CHAP: the state of each connection that has to authenticate, and the thread that computes.
//!
//! A connection submits messages to its `state`, which sends them to the `worker` with the session. The worker
//! serves addresses in turns (`fair_queue`) and returns each session with its result.

mod fair_queue;
mod state;
mod worker;

pub(crate) use state::AuthState;
pub(crate) use worker::{AuthResult, AuthWorker};
