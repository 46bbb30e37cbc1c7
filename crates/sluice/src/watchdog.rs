//! The watchdog of the service manager (`WatchdogSec=` of systemd).
//!
//! A ping proves two things: the control thread runs its tasks, and the table of the drives is not locked for
//! good. Every answer of the API needs both. An order that takes long holds up neither, nor does a reactor
//! that waits for a guest's memory. So a guest cannot make the service manager end the daemon, with the
//! drives of all others.

use crate::daemon::notify;
use sd_notify::{NotifyState, watchdog_enabled};
use sluice_control::drives::Drives;
use sluice_spec::error::ApiError;
use std::sync::{Arc, mpsc};
use std::thread;
use tokio::runtime::Handle;

/// Pings in the time after which the service manager ends the daemon.
const PINGS: u32 = 3;

/// Pings the service manager until the control thread ends, if a watchdog is set. The thread is one of its
/// own: all order threads may be busy.
pub(crate) fn start(control: Handle, drives: Arc<Drives>) -> Result<(), ApiError> {
    let Some(limit) = watchdog_enabled().filter(|limit| !limit.is_zero()) else { return Ok(()) };
    let pings = move || {
        let look = || {
            let _ = drives.count();
        };
        ping(&control, look, || {
            notify(&[NotifyState::Watchdog]);
            thread::sleep(limit / PINGS);
        });
    };
    let started = thread::Builder::new().name("watchdog".into()).spawn(pings);
    started.map(drop).map_err(|error| ApiError::internal(format!("cannot start the watchdog: {error}")))
}

/// Calls `send` each time after the control thread has run a task and `look` has returned.
fn ping(control: &Handle, look: impl Fn(), mut send: impl FnMut()) {
    while is_alive(control) {
        look();
        send();
    }
}

/// Waits until the control thread has run a task. Returns false if the control thread has ended.
fn is_alive(control: &Handle) -> bool {
    let (ran, wait) = mpsc::channel();
    control.spawn(async move {
        // Sending fails only if the watchdog's thread has ended.
        let _ = ran.send(());
    });
    wait.recv().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use tokio::runtime::Builder;
    use tokio::sync::oneshot;

    /// Order of the test's steps and the first ping.
    #[derive(Default)]
    struct Steps(Mutex<Vec<&'static str>>);

    impl Steps {
        fn push(&self, step: &'static str) {
            self.0.lock().expect("no thread has panicked").push(step);
        }
    }

    #[test]
    fn a_ping_comes_after_the_control_thread_and_the_table_answered() {
        let (steps, table) = (Arc::new(Steps::default()), Arc::new(Mutex::new(())));
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let (pinged, first) = oneshot::channel();
        let mut pinged = Some(pinged);
        let held = table.lock().expect("not locked yet");
        let (control, log, locked) = (runtime.handle().clone(), Arc::clone(&steps), Arc::clone(&table));
        let pings = thread::spawn(move || {
            let look = || drop(locked.lock().expect("no thread has panicked"));
            ping(&control, look, || {
                log.push("ping");
                pinged.take().map(|pinged| pinged.send(()));
            });
        });
        steps.push("control thread runs");
        runtime.block_on(async {
            tokio::task::yield_now().await;
            steps.push("table is free");
            drop(held);
            first.await.expect("a ping");
        });
        drop(runtime);
        pings.join().expect("it ends with the control thread");
        let steps = steps.0.lock().expect("no thread has panicked");
        assert_eq!(steps[..3], ["control thread runs", "table is free", "ping"]);
    }
}
