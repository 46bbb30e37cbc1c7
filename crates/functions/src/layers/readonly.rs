//! Readonly: a drive that can be read and not changed.

use crate::{Kind, OpenCx, Prepared, Shape};
use serde::{Deserialize, Serialize};
use sluice_command::{Characteristics, Command, Lane, Layer};
use sluice_nvme::Status;
use sluice_options::Fault;
use utoipa::ToSchema;

/// Options of a function that refuses changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadOnlyOptions {}

impl<L> Kind<L> for ReadOnlyOptions {
    const NAME: &'static str = "readonly";
    const ABOUT: &'static str = "Refuses every change, as a write protected namespace does.";

    fn shape(&self) -> Shape {
        Shape { is_stateless: true, ..Shape::SAME }
    }

    fn open(&self, _: &OpenCx<'_>) -> Result<Prepared, Fault> {
        Ok(Prepared::new(|_| ReadOnly))
    }
}

/// Layer that forwards Read and Flush, and finishes all other commands with Namespace is Write Protected.
///
/// A namespace over it reports that it is write protected (NSATTR), so the controller refuses most changes
/// before they come here. Commands that a function above makes are refused here.
#[derive(Debug)]
pub struct ReadOnly;

impl Layer for ReadOnly {
    fn name(&self) -> &'static str {
        "readonly"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        Characteristics { read_only: true, ..below[0].over() }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        match lane.slot(&command).request.operation.modifies() {
            true => lane.finish(command, Status::NAMESPACE_WRITE_PROTECTED),
            false => lane.forward(command),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::bench::{BLOCK, Bench, SIZE};
    use sluice_command::Operation;

    #[test]
    fn what_reads_passes_and_what_changes_data_ends_here() {
        let mut bench = Bench::new(ReadOnly, Status::SUCCESS);
        for (operation, length, reaches) in [
            (Operation::Read, BLOCK.into(), true),
            (Operation::Write, BLOCK.into(), false),
            (Operation::WriteZeroes, SIZE, false),
            (Operation::Deallocate, SIZE, false),
            (Operation::Flush, 0, true),
        ] {
            let status = if reaches { Status::SUCCESS } else { Status::NAMESPACE_WRITE_PROTECTED };
            let answered = bench.submit(operation, 0, length);
            assert!(matches!(answered[..], [(_, found)] if found == status), "{operation:?}: {answered:?}");
            assert_eq!(bench.reached().len(), usize::from(reaches), "{operation:?}");
        }
    }

    #[test]
    fn errors_of_the_layer_below_pass() {
        let mut bench = Bench::new(ReadOnly, Status::UNRECOVERED_READ_ERROR);
        assert_eq!(bench.read(0), [(0, Status::UNRECOVERED_READ_ERROR)]);
        assert_eq!(bench.write(0, 512), [(1, Status::NAMESPACE_WRITE_PROTECTED)]);
    }

    #[test]
    fn the_layer_is_as_the_one_below_and_write_protected() {
        let below = Characteristics::target(SIZE, BLOCK);
        let bench = Bench::new(ReadOnly, Status::SUCCESS);
        assert_eq!(bench.stack.characteristics(), Characteristics { depth: 2, read_only: true, ..below });
    }
}
