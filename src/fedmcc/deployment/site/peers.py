"""The other sites with which a site shares its secrets in secure aggregation: are their keys genuine?"""

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256

from fedmcc.deployment.flower.signatures import are_signed_keys, sign_keys, sign_survivors
from fedmcc.deployment.messages import Peer
from fedmcc.deployment.setup.certificates import load_site_key
from fedmcc.deployment.setup.layout import PRIVATE_MODE, SiteFolder
from fedmcc.deployment.site.memory import RefusalError
from fedmcc.federation.secure_aggregation.participant import PublicKeys
from fedmcc.storage.atomic_files import write_atomically

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PeerBook:
    """Signs the keys of this site, and checks those of others against the keys that it has first seen.

    With `allowed`, only sites take part whose registered key has one of these SHA-256.
    """

    folder: SiteFolder
    allowed: tuple[str, ...] | None = None

    def sign(self, context: bytes, name: str, keys: PublicKeys) -> bytes:
        """The signature of this site under its public keys of an attempt."""
        return sign_keys(context, name, keys, load_site_key(self.folder.key))

    def confirm(self, context: bytes, name: str, received: Collection[int]) -> bytes:
        """The signature of this site under the list of clients whose vectors are in a sum."""
        return sign_survivors(context, name, received, load_site_key(self.folder.key))

    def check(self, context: bytes, peers: Mapping[int, Peer]) -> None:
        """Raise RefusalError unless each site signed its keys with the registered key that it always had."""
        known = self._read()
        if len({peer.name for peer in peers.values()}) < len(peers):
            raise RefusalError("The server names a site twice.")
        for peer in peers.values():
            if not are_signed_keys(context, peer):
                raise RefusalError(f"The keys of site {peer.name:.64} are not signed by that site.")
            self._check_registered(peer, known)
        self._add({peer.name: fingerprint(peer) for peer in peers.values()}, known)

    def _check_registered(self, peer: Peer, known: Mapping[str, str]) -> None:
        own = fingerprint(peer)
        if self.allowed is not None and own not in self.allowed:
            raise RefusalError(
                f"The policy of the site does not list the key of site {peer.name:.64}: {own}."
            )
        if known.get(peer.name, own) != own:
            raise RefusalError(
                f"Site {peer.name:.64} has another key than before: if its owner confirms the SHA-256 {own}, "
                "remove its old one from peers.json in the folder of this site."
            )
        if own in {key for name, key in known.items() if name != peer.name}:
            raise RefusalError(f"Site {peer.name:.64} has the key of another site.")

    def _add(self, peers: Mapping[str, str], known: Mapping[str, str]) -> None:
        for name in sorted(peers.keys() - known.keys()):
            log.info("Site %s takes part for the first time; its key has the SHA-256 %s.", name, peers[name])
        if peers.keys() - known.keys():
            write_atomically(self.folder.peers, json.dumps({**known, **peers}, indent=1), PRIVATE_MODE)

    def _read(self) -> dict[str, str]:
        try:
            known: dict[str, str] = json.loads(self.folder.peers.read_text())
        except FileNotFoundError:
            return {}
        except ValueError:
            raise RefusalError("The file peers.json of the site is damaged: restore or delete it.") from None
        return known


def fingerprint(peer: Peer) -> str:
    """SHA-256 of the registered key of a site, without the comment that may follow it."""
    return sha256(b" ".join(peer.registered.split()[:2])).hexdigest()
