//! Affinity keys: the part of a request that decides to which endpoint it goes.

use std::borrow::Cow;

/// The bytes by which a request is kept with one endpoint.
///
/// Made from strings, bytes or numbers (as eight bytes, least significant first). The empty
/// string is a key like any other.
///
/// ```
/// use counterpoise::policy::affinity::Key;
///
/// assert_eq!(Key::from("user 7").as_bytes(), b"user 7");
/// assert_eq!(Key::from(7_u64).as_bytes().len(), 8);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key<'a>(Cow<'a, [u8]>);

impl Key<'_> {
    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl<'a> From<&'a str> for Key<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text.as_bytes()))
    }
}

impl<'a> From<&'a [u8]> for Key<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(Cow::Borrowed(bytes))
    }
}

impl From<String> for Key<'_> {
    fn from(text: String) -> Self {
        Self(Cow::Owned(text.into_bytes()))
    }
}

impl From<Vec<u8>> for Key<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Cow::Owned(bytes))
    }
}

impl From<u64> for Key<'_> {
    fn from(number: u64) -> Self {
        Self(Cow::Owned(number.to_le_bytes().to_vec()))
    }
}

/// Finds the key of a request.
///
/// Implemented for functions and closures `Fn(&Req) -> Option<Key>`. A closure belongs in `by`,
/// where the compiler infers its lifetimes; `on` takes functions with a name. For HTTP see
/// `http::key`; [`Combine`] makes one key of two.
#[diagnostic::on_unimplemented(
    message = "`{Self}` finds no affinity keys in requests of type `{Req}`",
    note = "a closure takes `&{Req}`, with the type written out"
)]
pub trait Affinity<Req: ?Sized>: Send + Sync + 'static {
    /// Returns the key of a request; none if it has no key.
    fn key<'a>(&self, request: &'a Req) -> Option<Key<'a>>;
}

/// Makes one [`Affinity`] of two.
///
/// ```
/// use counterpoise::policy::affinity::{Combine, Key, RingHash};
///
/// fn user(request: &(Option<String>, String)) -> Option<Key<'_>> {
///     request.0.as_deref().map(Key::from)
/// }
///
/// fn address(request: &(Option<String>, String)) -> Option<Key<'_>> {
///     Some(request.1.as_str().into())
/// }
///
/// let policy = RingHash::on(user.or(address));
/// ```
pub trait Combine: Sized {
    /// Combines two keys, in order.
    ///
    /// With one part missing, the other is the key; with both missing there is no key. The bytes of
    /// two parts are the length of the first (eight bytes, least significant first), the first and
    /// the second, so different pairs have different keys. Proxies hash the plain concatenation; a
    /// closure makes that.
    fn and<B>(self, other: B) -> And<Self, B> {
        And(self, other)
    }

    /// Returns the other key if this one is missing.
    fn or<B>(self, other: B) -> Or<Self, B> {
        Or(self, other)
    }
}

impl<A> Combine for A {}

#[diagnostic::do_not_recommend]
impl<F, Req: ?Sized> Affinity<Req> for F
where
    F: for<'a> Fn(&'a Req) -> Option<Key<'a>> + Send + Sync + 'static,
{
    fn key<'a>(&self, request: &'a Req) -> Option<Key<'a>> {
        self(request)
    }
}

/// Two keys combined; see [`Combine::and`].
#[derive(Debug, Clone)]
pub struct And<A, B>(A, B);

/// One key or the other; see [`Combine::or`].
#[derive(Debug, Clone)]
pub struct Or<A, B>(A, B);

impl<Req: ?Sized, A: Affinity<Req>, B: Affinity<Req>> Affinity<Req> for And<A, B> {
    fn key<'a>(&self, request: &'a Req) -> Option<Key<'a>> {
        let (first, second) = match (self.0.key(request), self.1.key(request)) {
            (Some(first), Some(second)) => (first, second),
            (one, other) => return one.or(other),
        };
        // The length distinguishes ("ab", "c") from ("a", "bc").
        let mut bytes = (first.0.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(&first.0);
        bytes.extend_from_slice(&second.0);
        Some(bytes.into())
    }
}

impl<Req: ?Sized, A: Affinity<Req>, B: Affinity<Req>> Affinity<Req> for Or<A, B> {
    fn key<'a>(&self, request: &'a Req) -> Option<Key<'a>> {
        self.0.key(request).or_else(|| self.1.key(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Parts = [Option<&'static str>; 2];

    fn first(parts: &Parts) -> Option<Key<'_>> {
        parts[0].map(Key::from)
    }

    fn second(parts: &Parts) -> Option<Key<'_>> {
        parts[1].map(Key::from)
    }

    #[test]
    fn combined_keys_keep_their_parts_apart() {
        let both = first.and(second);
        let key = |a, b| both.key(&[a, b]).map(|key| key.as_bytes().to_vec());
        assert_ne!(key(Some("ab"), Some("c")), key(Some("a"), Some("bc")));
        assert_ne!(key(Some(""), Some("")), key(Some(""), None));
        assert_eq!(key(None, Some("x")), Some(b"x".to_vec()));
        assert_eq!(key(None, None), None);
    }

    #[test]
    fn the_second_key_replaces_a_missing_one() {
        let either = first.or(second);
        assert_eq!(either.key(&[None, Some("b")]), Some("b".into()));
        assert_eq!(either.key(&[Some(""), Some("b")]), Some("".into()));
    }
}
