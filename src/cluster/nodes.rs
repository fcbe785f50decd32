//! The nodes of a snapshot: a list that shares what has not changed with the one before.

use std::sync::Arc;

use crate::cluster::node::Node;

/// An immutable list of nodes, in chunks: the next one copies only the chunks that differ.
#[derive(Debug)]
pub(crate) struct Nodes<T> {
    chunks: Arc<[Chunk<T>]>,
    len: usize,
}

type Chunk<T> = Arc<[Arc<Node<T>>]>;

const BITS: u32 = 7;
const CHUNK: usize = 1 << BITS;

/// Which part of a list differs from the one that was published.
#[derive(Debug)]
pub(crate) struct Changes {
    /// Single places that hold another node.
    places: Vec<usize>,
    /// From here on, everything may differ.
    from: usize,
}

/// More places than this are not told apart.
const MOST: usize = 1_024;

impl Default for Changes {
    fn default() -> Self {
        Self { places: Vec::new(), from: usize::MAX }
    }
}

impl Changes {
    pub(crate) fn at(&mut self, place: usize) {
        if self.places.len() < MOST {
            self.places.push(place);
        } else {
            self.from(place);
        }
    }

    pub(crate) fn from(&mut self, place: usize) {
        self.from = self.from.min(place);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty() && self.from == usize::MAX
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

    /// Finds a node by its id; they are in rising order.
    pub(crate) fn find(&self, id: u64) -> Option<&Arc<Node<T>>> {
        let last = |chunk: &Chunk<T>| chunk.last().is_none_or(|node| node.state.id < id);
        let chunk = self.chunks.get(self.chunks.partition_point(last))?;
        let place = chunk.binary_search_by_key(&id, |node| node.state.id).ok()?;
        chunk.get(place)
    }

    /// Returns the list of these nodes, which differ from this one only so. Cost: O(n / 128)
    /// and O(128) for each place that differs.
    pub(crate) fn next(&self, nodes: &[Arc<Node<T>>], changes: &Changes) -> Self {
        if changes.is_empty() {
            return self.clone();
        }
        let mut stale = vec![false; nodes.len().div_ceil(CHUNK)];
        for &place in &changes.places {
            if let Some(stale) = stale.get_mut(place >> BITS) {
                *stale = true;
            }
        }
        stale.iter_mut().skip(changes.from >> BITS).for_each(|stale| *stale = true);
        let former = |number: usize| self.chunks.get(number).filter(|_| !stale[number]);
        let fresh = nodes.chunks(CHUNK).enumerate();
        let chunks =
            fresh.map(|(number, fresh)| former(number).cloned().unwrap_or_else(|| fresh.into()));
        Self { chunks: chunks.collect(), len: nodes.len() }
    }
}

impl<T> Clone for Nodes<T> {
    fn clone(&self) -> Self {
        Self { chunks: Arc::clone(&self.chunks), len: self.len }
    }
}

impl<T> Default for Nodes<T> {
    fn default() -> Self {
        Self { chunks: Arc::default(), len: 0 }
    }
}
