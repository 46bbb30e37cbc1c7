//! Model: the controller, the subsystem and the namespace, with the questions that other floors have about them,
//! and the steps that change only their state.

pub(crate) mod access;
pub(crate) mod ana;
pub(crate) mod arbitration;
pub(crate) mod attachment;
pub(crate) mod controller;
pub(crate) mod erasing;
pub(crate) mod event_requests;
pub(crate) mod history;
pub(crate) mod hold;
pub(crate) mod host_state;
pub(crate) mod hosts;
pub(crate) mod interrupts;
pub(crate) mod jobs;
pub(crate) mod kept;
pub(crate) mod layers;
pub(crate) mod management;
pub(crate) mod namespace;
pub(crate) mod overview;
pub(crate) mod patience;
pub(crate) mod peer_config;
pub(crate) mod queues;
pub(crate) mod record;
pub(crate) mod reports;
pub(crate) mod request;
pub(crate) mod self_test;
pub(crate) mod served_queues;
pub(crate) mod sharing;
pub(crate) mod shutdown;
pub(crate) mod slots;
pub(crate) mod states;
pub(crate) mod subsystem;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod unmapped_queues;

pub use controller::Controller;
pub use namespace::Namespace;
pub use subsystem::Subsystem;
