"""Synthetic demo data, generated in a fraction of a second and free of any licence.

It has a long tail, preferences that can be learned, noisy clicks, cold users, and item titles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llpauc.data.ids import IdMap
from llpauc.data.interactions import Interactions, Split
from llpauc.data.splits import Seed, generator

# Per genre: first words | last words of titles.
_WORDS: dict[str, str] = {
    "sea": "Glass Silent Drowned Salt Northern Amber Tidal Broken Lantern | "
    "Harbour Lighthouse Anchor Reef Tide Sailor Island Current Shipwreck",
    "space": "Orbital Lunar Last Falling Crimson Binary Distant Frozen Quantum | "
    "Station Comet Colony Signal Horizon Starship Eclipse Satellite Nebula",
    "crime": "Crooked Midnight Cold Paper Seventh False Velvet Quiet Missing | "
    "Alibi Witness Verdict Detective Ransom Fingerprint Informer Motive Suspect",
    "romance": "Tender Summer Forgotten Unsent Second Parisian Rainy Borrowed Gentle | "
    "Letter Kiss Wedding Promise Valentine Waltz Sweetheart Bouquet Embrace",
    "horror": "Hollow Whispering Haunted Pale Buried Starving Withered Crawling Cursed | "
    "Cellar Scream Graveyard Doll Séance Mirror Coffin Asylum Shadow",
    "fantasy": "Silver Elder Thorned Moonlit Hidden Enchanted Obsidian Wandering Oaken | "
    "Dragon Wizard Throne Sword Kingdom Grimoire Griffin Prophecy Tower",
    "comedy": "Clumsy Accidental Reluctant Overpaid Jolly Unlikely Dizzy Sleepless Hopeless | "
    "Neighbour Butler Uncle Plumber Landlord Roommate Babysitter Bachelor Dentist",
    "western": "Dusty Lonesome Bitter Golden Iron Restless Ragged Scarlet Weary | "
    "Canyon Sheriff Outlaw Saloon Mustang Prairie Stagecoach Rancher Bounty",
    "war": "Forgotten Winter Burning Eastern Muddy Sunken Final Paper Steel | "
    "Trench Regiment Armistice Bridge Bunker Convoy Soldier Siege Barricade",
    "kitchen": "Smoked Sugared Peppered Simmering Rustic Pickled Candied Toasted Spiced | "
    "Table Bakery Feast Orchard Recipe Kitchen Banquet Vineyard Pantry",
}
GENRES = tuple(_WORDS)

N_USERS = 2_000
N_ITEMS = 600
NOISE_FRACTION = 0.13
COLD_USERS = 165  # 8 % of the test users or a little more
_FIRST_SECOND = 1_672_531_200  # 1 January 2023
_YEAR = 365 * 24 * 3600


@dataclass(frozen=True)
class DemoData:
    """The demo's events and titles, and the parameters they were drawn from."""

    split: Split  # ids such as "u0042" and "i0137"
    titles: dict[str, str]  # by item id
    noisy: npt.NDArray[np.bool_]  # for each training event, whether it is a noisy click
    tastes: npt.NDArray[np.float64]  # users x genres, each row sums to 1
    genres: npt.NDArray[np.int64]  # the index into `GENRES` of each item
    appeal: npt.NDArray[np.float64]  # popularity of each item regardless of taste; sums to 1


def demo_data(seed: Seed = 2024) -> DemoData:
    """2,000 users, 600 films, about 40,000 events in one year.

    A user likes one to three of ten genres and picks film i, among those not yet seen, with
    probability proportional to taste[genre of i] * appeal[i]; appeal decreases as a power of the
    film's rank. The last 20 % of a user's events are tested, the 10 % before them validated. Then
    13 % of the training events are replaced by clicks drawn from the appeal alone, never on a film
    that the user picked: the noise of the paper's noise setting, in train only. 8 % of the test
    users are cold: they have test events only.

    Args:
        seed: integer >= 0, or a Generator; the same seed gives the same data.

    >>> demo = demo_data()
    >>> demo.split.n_users, demo.split.n_items
    (2000, 600)
    >>> demo.titles["i0007"]
    'The Glass Harbour'
    """
    rng = generator(seed)
    genres, titles = _catalogue(rng)
    weight = (rng.permutation(N_ITEMS) + 4.0) ** -1.1
    appeal = weight / weight.sum()
    tastes = _tastes(rng)

    picks = np.clip(np.rint(rng.lognormal(2.95, 0.45, N_USERS)), 8, 80).astype(np.int64)
    users, items = _pick(np.log(tastes[:, genres] + 1e-12) + np.log(appeal), picks, rng)
    cold = np.zeros(N_USERS, dtype=bool)
    cold[rng.choice(N_USERS, COLD_USERS, replace=False)] = True

    # The order of a user's picks is shuffled: drawing without replacement takes favourites first,
    # and a test on the rest would be another task.
    by_user = np.lexsort((rng.random(len(users)), users))
    place = np.empty(len(users), dtype=np.int64)  # 0..size-1 among the user's events
    place[by_user] = np.arange(len(users)) - np.repeat(np.cumsum(picks) - picks, picks)
    size = picks[users]
    n_test = np.maximum(np.rint(0.2 * size), 1)
    n_valid = np.maximum(np.rint(0.1 * size), 1)
    codes = np.where(place >= size - n_test, 2, np.where(place >= size - n_test - n_valid, 1, 0))
    shown = ~cold[users] | (codes == 2)
    seconds = (place + rng.random(len(place))) / size * _YEAR
    times = _FIRST_SECOND + np.floor(seconds)

    noisy = (codes == 0) & (rng.random(len(codes)) < NOISE_FRACTION)
    taken = np.zeros((N_USERS, N_ITEMS), dtype=bool)
    taken[users, items] = True
    clicks = np.bincount(users[noisy], minlength=N_USERS)
    _, items[noisy] = _pick(np.where(taken, -np.inf, np.log(appeal)), clicks, rng)

    in_time = np.flatnonzero(shown)
    in_time = in_time[np.lexsort((items[in_time], users[in_time], times[in_time]))]
    events = Interactions(
        users[in_time].astype(np.int32),
        items[in_time].astype(np.int32),
        IdMap.of([f"u{row:04d}" for row in range(N_USERS)]),
        IdMap.of(list(titles)),
        timestamps=times[in_time],
    )
    codes, noisy = codes[in_time], noisy[in_time]
    split = Split(
        events.take(codes == 0),
        events.take(codes == 1),
        events.take(codes == 2),
        ("synthetic demo data: films, ten genres", "each user's last events are held out"),
    )
    return DemoData(split, titles, noisy[codes == 0], tastes, genres, appeal)


def _catalogue(rng: np.random.Generator) -> tuple[npt.NDArray[np.int64], dict[str, str]]:
    """The genre of each item, equally many of each in random order, and the titles."""
    genres = rng.permutation(np.arange(N_ITEMS) % len(GENRES))
    titles: dict[str, str] = {}
    used = [0] * len(GENRES)
    for item, genre in enumerate(genres):
        fronts, backs = (words.split() for words in _WORDS[GENRES[genre]].split("|"))
        turn, front = divmod(used[genre], len(fronts))
        # Each round shifts the last words by one, so that titles are distinct.
        titles[f"i{item:04d}"] = f"The {fronts[front]} {backs[(front + turn) % len(backs)]}"
        used[genre] += 1
    return genres, titles


def _tastes(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """One to three genres per user, some liked by more users, and a little weight on all."""
    n_genres = len(GENRES)
    liking = np.log(rng.permutation(np.linspace(1.0, 3.0, n_genres)))
    order = np.argsort(-(liking + rng.gumbel(size=(N_USERS, n_genres))), axis=1)
    how_many = rng.choice([1, 2, 3], size=N_USERS, p=[0.3, 0.4, 0.3])
    tastes = np.zeros((N_USERS, n_genres))
    for nth in range(3):
        likes = np.flatnonzero(how_many > nth)
        tastes[likes, order[likes, nth]] = rng.uniform(0.5, 1.0, len(likes))
    tastes /= tastes.sum(axis=1, keepdims=True)
    return 0.92 * tastes + 0.08 / n_genres


def _pick(
    log_weights: npt.NDArray[np.float64],
    counts: npt.NDArray[np.int64],
    rng: np.random.Generator,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """`counts[u]` distinct items for each user, drawn one after another in proportion to weight.

    The items with the highest log weight + Gumbel noise are such a draw, for all users at once.
    """
    ranked = np.argsort(-(log_weights + rng.gumbel(size=(N_USERS, N_ITEMS))), axis=1)
    users = np.repeat(np.arange(N_USERS), counts)
    nth = np.arange(len(users)) - np.repeat(np.cumsum(counts) - counts, counts)
    return users, ranked[users, nth]
