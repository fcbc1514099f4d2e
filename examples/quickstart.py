"""Cluster scikit-learn's handwritten digits without their labels: python examples/quickstart.py"""

import argparse

from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import normalized_mutual_info_score as nmi

from fedmcc import DeepClustering


def main() -> None:
    """Fit, and compare the clusters with the labels, which training does not use."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs

    digits = load_digits()
    images = digits.images / 16  # 1,797 images of 8 x 8 pixels, floats from 0 to 1
    model = DeepClustering(
        n_clusters=10,
        views="digits",
        epochs=epochs,
        settings={"views.size": 16, "method.hidden": 512, "training.learning_rate": 1e-3},
    )
    clusters = model.fit_predict(images)

    pixels = KMeans(10, n_init=5, random_state=0).fit_predict(images.reshape(len(images), -1))
    features = KMeans(10, n_init=5, random_state=0).fit_predict(model.transform(images))
    print(f"loss {model.history_[0]:.3f} -> {model.history_[-1]:.3f} in {epochs} epochs")
    print(f"NMI of k-means on pixels    {nmi(digits.target, pixels):.3f}")
    print(f"NMI of the cluster head     {nmi(digits.target, clusters):.3f}")
    print(f"NMI of k-means on features  {nmi(digits.target, features):.3f}")


if __name__ == "__main__":
    main()
