//! Many cells under one name.

use super::cell::{BlockSize, Drives, Mix, Pattern, QueueDepth, Queues, Shape};
use clap::ValueEnum;

/// A set of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Grid {
    /// 4 KiB random reads and writes at queue depth 1, 32 and 128, and 128 KiB at 32
    Quick,
    /// The cells of NVMetro's Table II and of BM-Store's Table IV
    Paper,
    /// 512 B to 128 KiB, queue depth 1 to 256, 1 and 4 queue pairs, everything
    Full,
}

/// Lists of values; every combination of them is a cell.
#[derive(Clone, Debug)]
pub struct Axes {
    pub block_sizes: Vec<BlockSize>,
    pub queue_depths: Vec<QueueDepth>,
    pub queues: Vec<Queues>,
    pub patterns: Vec<Pattern>,
    pub mixes: Vec<Mix>,
    pub drives: Vec<Drives>,
}

impl Axes {
    fn new(
        block_sizes: &[u32],
        queue_depths: &[u32],
        queues: &[u32],
        pattern: Pattern,
        mixes: &[Mix],
    ) -> Self {
        Self {
            block_sizes: block_sizes.iter().copied().map(BlockSize).collect(),
            queue_depths: queue_depths.iter().copied().map(QueueDepth).collect(),
            queues: queues.iter().copied().map(Queues).collect(),
            patterns: vec![pattern],
            mixes: mixes.to_vec(),
            drives: vec![Drives(1)],
        }
    }

    /// Returns all cells. The number of drives changes least often, because its setup takes longest.
    pub fn cells(&self) -> Vec<Shape> {
        let mut cells = Vec::new();
        for &drives in &self.drives {
            for &block_size in &self.block_sizes {
                for &pattern in &self.patterns {
                    for &mix in &self.mixes {
                        for &queues in &self.queues {
                            cells.extend(self.queue_depths.iter().map(|&queue_depth| Shape {
                                block_size,
                                queue_depth,
                                queues,
                                pattern,
                                mix,
                                drives,
                            }));
                        }
                    }
                }
            }
        }
        cells
    }
}

impl Grid {
    pub fn cells(self) -> Vec<Shape> {
        self.axes().iter().flat_map(Axes::cells).collect()
    }

    fn axes(self) -> Vec<Axes> {
        use Pattern::{Random, Sequential};
        const BOTH: [Mix; 2] = [Mix::READ, Mix::WRITE];
        const ALL: [Mix; 3] = [Mix::READ, Mix::WRITE, Mix(50)];
        match self {
            Self::Quick => vec![
                Axes::new(&[4096], &[1, 32, 128], &[1], Random, &BOTH),
                Axes::new(&[128 << 10], &[32], &[1], Random, &BOTH),
            ],
            Self::Paper => vec![
                // NVMetro.
                Axes::new(&[512], &[1, 128], &[1], Random, &ALL),
                Axes::new(&[512], &[128], &[4], Random, &ALL),
                Axes::new(&[16 << 10, 128 << 10], &[1, 128], &[1, 4], Sequential, &ALL),
                // BM-Store.
                Axes::new(&[4096], &[1, 128], &[4], Random, &[Mix::READ]),
                Axes::new(&[4096], &[1, 16], &[4], Random, &[Mix::WRITE]),
                Axes::new(&[128 << 10], &[256], &[4], Sequential, &BOTH),
            ],
            Self::Full => [Random, Sequential]
                .map(|pattern| {
                    let sizes = [512, 4096, 16 << 10, 64 << 10, 128 << 10];
                    Axes::new(&sizes, &[1, 4, 16, 32, 64, 128, 256], &[1, 4], pattern, &ALL)
                })
                .to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_have_every_combination_once() {
        for (grid, count) in [(Grid::Quick, 8), (Grid::Paper, 39), (Grid::Full, 420)] {
            let cells = grid.cells();
            assert_eq!(cells.len(), count, "{grid:?}");
            let twice = (1..cells.len()).find(|&index| cells[..index].contains(&cells[index]));
            assert_eq!(twice.map(|index| cells[index]), None, "{grid:?}");
        }
    }
}
