//! The nodes of a snapshot, in a list that shares unchanged parts with the list before it.

use std::sync::Arc;

use super::node::Node;

/// An immutable list of nodes in chunks. The next list copies only the chunks that differ.
#[derive(Debug)]
pub(crate) struct Nodes<T> {
    chunks: Arc<[Chunk<T>]>,
    len: usize,
}

type Chunk<T> = Arc<[Arc<Node<T>>]>;

/// Chunks of 128: the change of one node copies 128 pointers, and 100,000 nodes have 782 chunks.
const BITS: u32 = 7;
const CHUNK: usize = 1 << BITS;

/// How a list differs from the published one.
#[derive(Debug)]
pub(crate) struct Changes {
    /// Positions that hold another node.
    positions: Vec<usize>,
    /// All nodes from this position on may differ.
    from: usize,
}

/// How many single positions are recorded; further ones count as a range, so that memory stays
/// bounded.
const MOST: usize = 1_024;

impl Default for Changes {
    fn default() -> Self {
        Self {
            positions: Vec::new(),
            from: usize::MAX,
        }
    }
}

impl Changes {
    pub(crate) fn at(&mut self, position: usize) {
        if self.positions.len() < MOST {
            self.positions.push(position);
        } else {
            self.from(position);
        }
    }

    pub(crate) fn from(&mut self, position: usize) {
        self.from = self.from.min(position);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.positions.is_empty() && self.from == usize::MAX
    }
}

impl<T> Nodes<T> {
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&Arc<Node<T>>> {
        self.chunks.get(index >> BITS)?.get(index & (CHUNK - 1))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Node<T>>> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Finds a node by its id. Cost: O(log n); the ids are in rising order.
    pub(crate) fn find(&self, id: u64) -> Option<&Arc<Node<T>>> {
        self.get(self.position(id)?)
    }

    /// Returns the index of the node with this id. Cost: O(log n).
    pub(crate) fn position(&self, id: u64) -> Option<usize> {
        let ends_before = |chunk: &Chunk<T>| chunk.last().is_none_or(|node| node.state.id < id);
        let number = self.chunks.partition_point(ends_before);
        let chunk = self.chunks.get(number)?;
        let position = chunk.binary_search_by_key(&id, |node| node.state.id).ok()?;
        Some((number << BITS) + position)
    }

    /// Returns a list of these nodes, which differ from this list as `changes` lists.
    ///
    /// Cost: O(n / 128), and O(128) for each chunk that differs.
    pub(crate) fn next(&self, nodes: &[Arc<Node<T>>], changes: &Changes) -> Self {
        if changes.is_empty() {
            return self.clone();
        }
        let mut stale = vec![false; nodes.len().div_ceil(CHUNK)];
        for &position in &changes.positions {
            if let Some(stale) = stale.get_mut(position >> BITS) {
                *stale = true;
            }
        }
        stale
            .iter_mut()
            .skip(changes.from >> BITS)
            .for_each(|stale| *stale = true);
        let chunks = nodes.chunks(CHUNK).zip(stale).enumerate();
        let chunks = chunks.map(|(number, (nodes, stale))| match self.chunks.get(number) {
            Some(former) if !stale => Arc::clone(former),
            _ => nodes.into(),
        });
        Self {
            chunks: chunks.collect(),
            len: nodes.len(),
        }
    }
}

impl<T> Clone for Nodes<T> {
    fn clone(&self) -> Self {
        Self {
            chunks: Arc::clone(&self.chunks),
            len: self.len,
        }
    }
}

impl<T> Default for Nodes<T> {
    fn default() -> Self {
        Self {
            chunks: Arc::default(),
            len: 0,
        }
    }
}
