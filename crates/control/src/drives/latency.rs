//! How long the commands of drives take.

use super::{Drives, lock};
use serde::{Deserialize, Serialize};
use sluice_controller::{OperationLatency, bucket_upper_ns};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::ToSchema;

/// Latency of the commands of a drive since it was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DriveLatency {
    pub drive: String,
    /// Operations: `read`, `write`, `flush`, and `other` for all other I/O commands.
    pub operations: Vec<LatencyView>,
}

/// Histogram of an operation: the time from the fetch of a command out of its submission queue until its
/// completion entry is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LatencyView {
    pub operation: String,
    /// Number of commands, estimated from the timed ones.
    pub count: u64,
    /// Sum of their times, nanoseconds.
    pub sum_ns: u64,
    /// Buckets with commands, in ascending order. A bucket is at most an eighth of its time wide.
    pub buckets: Vec<LatencyBucket>,
}

/// Commands of about the same latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LatencyBucket {
    /// Nanoseconds that each of these commands took less than, and no command of the next bucket did.
    pub below_ns: u64,
    /// Number of commands.
    pub count: u64,
}

impl From<OperationLatency> for LatencyView {
    fn from(found: OperationLatency) -> Self {
        let buckets = found.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        let buckets: Vec<_> = buckets
            .map(|(index, count)| LatencyBucket { below_ns: bucket_upper_ns(index), count: *count })
            .collect();
        Self {
            operation: found.operation.as_str().to_owned(),
            count: found.counts.iter().sum(),
            sum_ns: found.sum_ns,
            buckets,
        }
    }
}

impl LatencyView {
    /// Returns the nanoseconds that this part of the commands took less than; none without commands.
    pub fn quantile_ns(&self, part: f64) -> Option<u64> {
        let rank = ((self.count as f64 * part).ceil() as u64).max(1);
        let mut below = 0;
        self.buckets.iter().find_map(|bucket| {
            below += bucket.count;
            (below >= rank).then_some(bucket.below_ns)
        })
    }

    /// Returns the mean nanoseconds of a command; none without commands.
    pub fn mean_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count)
    }

    /// Returns the histogram of several operations together.
    pub fn sum<'a>(operations: impl IntoIterator<Item = &'a Self>) -> Self {
        let (mut sum, mut buckets) = (Self::default(), BTreeMap::new());
        for operation in operations {
            sum.count += operation.count;
            sum.sum_ns = sum.sum_ns.wrapping_add(operation.sum_ns);
            for bucket in &operation.buckets {
                *buckets.entry(bucket.below_ns).or_default() += bucket.count;
            }
        }
        sum.buckets =
            buckets.into_iter().map(|(below_ns, count)| LatencyBucket { below_ns, count }).collect();
        sum
    }

    /// Returns the commands that completed after `earlier`, a view of the same operation.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |below_ns| {
            let same = earlier.buckets.iter().find(|bucket| bucket.below_ns == below_ns);
            same.map_or(0, |bucket| bucket.count)
        };
        let less = |bucket: &LatencyBucket| LatencyBucket {
            below_ns: bucket.below_ns,
            count: bucket.count.saturating_sub(before(bucket.below_ns)),
        };
        Self {
            operation: self.operation.clone(),
            count: self.count.saturating_sub(earlier.count),
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
            buckets: self.buckets.iter().map(less).filter(|bucket| bucket.count > 0).collect(),
        }
    }
}

impl Drives {
    /// Returns the latency of the commands of each open drive that is measured.
    pub fn latency(&self) -> Vec<DriveLatency> {
        let open: Vec<_> = {
            let entries = lock(&self.entries);
            let running = |(name, entry): (&String, &super::Entry)| {
                Some((name.clone(), Arc::clone(entry.running.as_ref().ok()?)))
            };
            entries.iter().filter_map(running).collect()
        };
        let view = |(drive, running): (String, Arc<dyn super::Running>)| {
            let operations: Vec<_> = running.latency().into_iter().map(LatencyView::from).collect();
            (!operations.is_empty()).then_some(DriveLatency { drive, operations })
        };
        open.into_iter().filter_map(view).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(buckets: &[(u64, u64)]) -> LatencyView {
        let buckets: Vec<_> =
            buckets.iter().map(|&(below_ns, count)| LatencyBucket { below_ns, count }).collect();
        LatencyView {
            count: buckets.iter().map(|bucket| bucket.count).sum(),
            buckets,
            ..LatencyView::default()
        }
    }

    #[test]
    fn a_quantile_is_the_bound_that_so_many_are_below() {
        let view = view(&[(100, 98), (200, 1), (400, 1)]);
        assert_eq!(
            [0.0, 0.5, 0.98, 0.981, 0.99, 0.991, 1.0].map(|part| view.quantile_ns(part).unwrap_or(0)),
            [100, 100, 100, 200, 200, 400, 400]
        );
        assert_eq!(LatencyView::default().quantile_ns(0.5), None);
    }

    #[test]
    fn histograms_are_added_bucket_by_bucket() {
        let (read, write) = (view(&[(100, 1), (300, 2)]), view(&[(200, 3), (300, 4)]));
        assert_eq!(LatencyView::sum([&read, &write]), view(&[(100, 1), (200, 3), (300, 6)]));
    }

    #[test]
    fn commands_of_an_interval_are_the_difference() {
        let (before, after) = (view(&[(100, 5), (200, 1)]), view(&[(100, 5), (200, 3), (300, 2)]));
        assert_eq!(after.since(&before), view(&[(200, 2), (300, 2)]));
        assert_eq!(after.since(&after), view(&[]));
    }
}
