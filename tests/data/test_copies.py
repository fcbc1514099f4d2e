import numpy as np

from fedmcc.data.copies import count_different, first_of_copies


def test_the_first_of_copies_is_that_of_a_loop_over_all_pairs():
    images = np.random.default_rng(0).integers(0, 3, (60, 1, 1, 3), dtype=np.uint8)
    expected = [next(j for j in range(i + 1) if (images[j] == images[i]).all()) for i in range(60)]
    assert first_of_copies(images).tolist() == expected
    different = len({image.tobytes() for image in images})
    assert [count_different(images, most) for most in (1, 5, 99)] == [1, 5, different]


def test_images_that_differ_in_one_value_are_different():
    images = np.zeros((3, 3, 8, 8), dtype=np.uint8)
    images[1, 2, 7, 7] = 1
    assert first_of_copies(images).tolist() == [0, 1, 0]
