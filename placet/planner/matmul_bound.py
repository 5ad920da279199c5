"""How few words a matrix multiplication on P ranks can communicate.

C[i, k] = A[i, j] B[j, k], with the dims sorted m >= n >= k, one copy of each matrix
spread over P ranks, every rank doing mnk / P of the multiplications. Some rank then
receives and sends at least D - (mn + mk + nk) / P words, where D is the least x + y + z
over projections of its work:

    least x + y + z  with  x y z >= (m n k / P)^2          (Loomis and Whitney)
                           x >= n k / P,  y >= m k / P,  z >= m n / P
                                                            -> _least_faces

    P <= m / n            D = nk + (mk + mn) / P
    m / n <= P <= mn/k^2  D = 2 (m n k^2 / P)^(1/2) + mn / P
    above                 D = 3 (m n k / P)^(2/3)

and memory does not enter. A grid p1 x p2 x p3 = P whose parts are equal moves what
`grid_words` says; the best grid meets the bound where the ideal one is whole.

Source: H. Al Daas, G. Ballard, L. Grigori, S. Kumar and K. Rouse, "Tight
Memory-Independent Parallel Matrix Multiplication Communication Lower Bounds", SPAA
2022.
"""

import math
from fractions import Fraction


def bound_words(shape: tuple[int, int, int], num_ranks: int) -> float:
    """Words that some rank must receive, at least.

    Args:
        shape: (i, j, k) of [i, j] times [j, k], in any order.
    """
    m, n, k = sorted(shape, reverse=True)
    owned = (m * n + m * k + n * k) / num_ranks
    return max(_least_faces(m, n, k, num_ranks) - owned, 0.0)


def _least_faces(m: int, n: int, k: int, num_ranks: int) -> float:
    """The least sum of a rank's three faces, in words; m >= n >= k."""
    if num_ranks * n <= m:
        return n * k + (m * k + m * n) / num_ranks
    if num_ranks * k * k <= m * n:
        return 2 * math.sqrt(m * n * k * k / num_ranks) + m * n / num_ranks
    return 3 * math.pow(m * n * k / num_ranks, 2 / 3)


def grid_words(shape: tuple[int, int, int], grid: tuple[int, int, int]) -> Fraction:
    """What each rank of a grid receives: two faces gathered, one reduced.

    Args:
        shape: (i, j, k); grid: how many ranks cut each of them.
    """
    (i, j, k), (p, q, r) = shape, grid
    ranks = p * q * r
    faces = ((i * j, p * q), (j * k, q * r), (i * k, p * r))
    return sum(
        (Fraction(size, cuts) - Fraction(size, ranks) for size, cuts in faces),
        Fraction(0),
    )


def bytes_over_bound(
    mean_received_bytes: float,
    shape: tuple[int, int, int],
    num_ranks: int,
    itemsize: int,
) -> float:
    """How many times the bound a plan moves; 1 where both are nothing.

    Args:
        mean_received_bytes: of a rank, for one multiplication and the changes of layout
            around it.
        itemsize: bytes of a word.
    """
    bound = bound_words(shape, num_ranks) * itemsize
    if bound == 0:
        return 1.0 if mean_received_bytes == 0 else float("inf")
    return mean_received_bytes / bound
