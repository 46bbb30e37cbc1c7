//! Orders for the background work of the set.

use super::Replicate;
use super::order::whole;
use crate::services::service::json;
use sluice_jobs::{Order, Verb};
use sluice_redundancy::RESYNC_JOB;
use sluice_uif::{Control, Io};

/// Name of the comparison, which an order may name.
const CHECK_JOB: &str = "check";

impl Replicate {
    /// Executes an order for a job. A copy is cancelled when the log has that.
    pub(super) fn order_jobs(&mut self, order: Result<Order, String>, io: &mut Io<'_>) -> Control {
        let waits = matches!(&order, Ok(Order::Do(Verb::Cancel, name, _)) if name == RESYNC_JOB);
        let answer = order.and_then(|order| self.execute_job(order, io.now_ns()));
        let answer = match answer {
            Ok(report) if waits => {
                (self.leaving, self.cancelled) = (true, Some(report));
                Control::Later
            }
            answer => Control::Now(answer),
        };
        self.run(io);
        answer
    }

    fn execute_job(&mut self, order: Order, now_ns: u64) -> Result<String, String> {
        let set = self.set.as_mut().filter(|set| !set.mirror.asks());
        match (order, set) {
            (Order::List, set) => json(&set.map(|set| set.mirror.jobs()).unwrap_or_default()),
            (Order::Do(verb, name, change), Some(set)) => {
                if (verb, name.as_str()) == (Verb::Resume, CHECK_JOB) {
                    whole(&set.mirror.status())?;
                }
                let report = set.mirror.order_job(verb, &name, change, now_ns)?;
                json(&report)
            }
            (_, None) => Err(self.error.clone()),
        }
    }
}
