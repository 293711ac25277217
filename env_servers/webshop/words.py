"""Vocabulary of the synthetic catalogue. All of it is our own; no product here exists."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A kind of product.

    Attributes:
        query: What a customer calls it.
        title: How a product's name calls it.
        path: Category path below the department.
        traits: Attributes that such products may have.
        options: Names of option groups, keys of `OPTIONS`.
        price: Lowest and highest price.
    """

    query: str
    title: str
    path: tuple[str, ...]
    traits: tuple[str, ...]
    options: tuple[str, ...]
    price: tuple[float, float]


def _split(text: str, by: str | None = None) -> list[str]:
    return text.split(by)


def _line(query: str, title: str, path: str, traits: str, options: str, low: float, high: float) -> Line:
    return Line(query, title, tuple(path.split(" > ")), tuple(traits.split(", ")), tuple(options.split()), (low, high))


_CLOTH = "machine wash, hand wash, quick drying, slim fit, loose fit, elastic waist, long sleeve, light weight"
_SHOES = "non slip, rubber sole, arch support, memory foam, water resistant, closed toe, ankle strap, wide fit"
_HOME = "easy clean, easy assemble, space saving, heavy duty, solid wood, living room, dining room, eco friendly"
_TEXTILE = (
    "machine washable, double sided, super soft, fade resistant, queen size, king size, wrinkle free, hidden zipper"
)
_CARE = "cruelty free, paraben free, sulfate free, sensitive skin, dry skin, long lasting, natural ingredients"
_HAIR = "hair growth, damaged hair, dry hair, curly hair, sulfate free, cruelty free, argan oil, coconut oil"
_GADGET = (
    "fast charging, noise cancelling, easy install, water proof, high speed, long battery, plug play, touch screen"
)
_VIDEO = (
    "ultra hd, wall mount, high definition, easy install, remote control, dual band, night vision, motion detection"
)
_FOOD = (
    "gluten free, non gmo, dairy free, low sugar, plant based, high protein, individually wrapped, kosher certified"
)
_DRINK = (
    "caffeine free, low calorie, organic leaves, usda organic, freeze dried, hand picked, sugar free, shelf stable"
)

LINES: dict[str, tuple[Line, ...]] = {
    "fashion": (
        _line("men's hoodies", "Men's Pullover Hoodie", "Men > Clothing > Hoodies", _CLOTH, "colour size", 14, 79),
        _line("women's dresses", "Women's Midi Dress", "Women > Clothing > Dresses", _CLOTH, "colour size", 16, 120),
        _line("men's shirts", "Men's Button Down Shirt", "Men > Clothing > Shirts", _CLOTH, "colour size fit", 12, 69),
        _line(
            "women's leggings", "Women's Yoga Leggings", "Women > Clothing > Leggings", _CLOTH, "colour size", 9, 49
        ),
        _line("running shoes", "Running Shoes", "Shoes > Athletic > Running", _SHOES, "colour shoe", 29, 160),
        _line(
            "women's sandals", "Women's Platform Sandals", "Shoes > Sandals > Platform", _SHOES, "colour shoe", 15, 90
        ),
        _line("rain jackets", "Hooded Rain Jacket", "Outerwear > Jackets > Rain", _CLOTH, "colour size", 25, 180),
        _line("work boots", "Steel Toe Work Boots", "Shoes > Boots > Work", _SHOES, "colour shoe", 45, 210),
    ),
    "garden": (
        _line("console tables", "Console Table", "Furniture > Living Room > Tables", _HOME, "finish", 59, 420),
        _line("bookcases", "Ladder Bookcase", "Furniture > Office > Shelving", _HOME, "finish tiers", 39, 320),
        _line(
            "throw pillows",
            "Throw Pillow Cover",
            "Bedding > Decorative Pillows > Covers",
            _TEXTILE,
            "colour pillow",
            7,
            45,
        ),
        _line("duvet covers", "Duvet Cover Set", "Bedding > Duvets > Covers", _TEXTILE, "colour bed", 25, 140),
        _line(
            "window curtains",
            "Blackout Window Curtains",
            "Decor > Windows > Curtains",
            _TEXTILE,
            "colour drop",
            15,
            99,
        ),
        _line("area rugs", "Woven Area Rug", "Decor > Floors > Rugs", _TEXTILE, "colour rug", 25, 390),
        _line("table lamps", "Ceramic Table Lamp", "Lighting > Lamps > Table", _HOME, "finish", 22, 190),
        _line("storage baskets", "Seagrass Storage Basket", "Storage > Baskets > Woven", _HOME, "pack basket", 12, 70),
    ),
    "beauty": (
        _line(
            "face moisturizers",
            "Face Moisturizer Cream",
            "Skin Care > Face > Moisturizers",
            _CARE,
            "scent ounces",
            8,
            64,
        ),
        _line("lip balms", "Lip Balm", "Skin Care > Lips > Balms", _CARE, "flavour pack", 4, 25),
        _line("shampoos", "Repair Shampoo", "Hair Care > Wash > Shampoo", _HAIR, "scent ounces", 7, 48),
        _line("hair masks", "Deep Hair Mask", "Hair Care > Treatment > Masks", _HAIR, "scent ounces", 9, 55),
        _line("makeup brushes", "Makeup Brush Set", "Tools > Makeup > Brushes", _CARE, "colour pieces", 9, 60),
        _line("bath bombs", "Bath Bomb Gift Set", "Bath > Additives > Bombs", _CARE, "scent pieces", 10, 42),
        _line("toothbrushes", "Bamboo Toothbrush", "Oral Care > Brushes > Manual", _CARE, "colour pack", 5, 28),
    ),
    "electronics": (
        _line(
            "wireless headphones", "Wireless Headphones", "Audio > Headphones > Over Ear", _GADGET, "colour", 25, 340
        ),
        _line("bluetooth speakers", "Bluetooth Speaker", "Audio > Speakers > Portable", _GADGET, "colour", 19, 280),
        _line("phone chargers", "USB Wall Charger", "Phones > Power > Chargers", _GADGET, "colour watts", 8, 69),
        _line("security cameras", "Outdoor Security Camera", "Video > Surveillance > Cameras", _VIDEO, "kit", 29, 460),
        _line("tv mounts", "TV Wall Bracket", "Video > Mounts > Television", _VIDEO, "inches", 18, 130),
        _line("hdmi cables", "HDMI Cable", "Video > Cables > Interconnects", _VIDEO, "feet pack", 6, 55),
        _line("tablet cases", "Folding Tablet Case", "Computers > Tablets > Cases", _GADGET, "colour", 9, 58),
    ),
    "grocery": (
        _line("protein bars", "Protein Bars", "Snacks > Bars > Protein", _FOOD, "flavour pack", 9, 48),
        _line("trail mixes", "Trail Mix", "Snacks > Nuts > Mixes", _FOOD, "flavour ounces", 7, 39),
        _line("herbal teas", "Herbal Tea Bags", "Beverages > Tea > Herbal", _DRINK, "flavour pack", 5, 36),
        _line("ground coffees", "Ground Coffee", "Beverages > Coffee > Ground", _DRINK, "roast ounces", 8, 44),
        _line("pasta sauces", "Tomato Pasta Sauce", "Pantry > Sauces > Pasta", _FOOD, "flavour pack", 4, 29),
        _line("cookies", "Oatmeal Cookies", "Snacks > Cookies > Oatmeal", _FOOD, "flavour pack", 5, 34),
    ),
}

DEPARTMENTS: dict[str, str] = {
    "fashion": "Clothing, Shoes & Jewelry",
    "garden": "Home & Kitchen",
    "beauty": "Beauty & Personal Care",
    "electronics": "Electronics",
    "grocery": "Grocery & Gourmet Food",
}

# Option group → its published name and values. Some colours hold two colour words and `standard` hides one: they meet
# the reward's colour rule, so that this catalogue too has goals that no purchase can fulfil.
OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "colour": (
        "Color",
        tuple(
            _split(
                "Black, White, Navy, Wine Red, Forest Green, Heather Gray, Burnt Orange, Dusty Rose, Sky Blue, "
                "Mustard Yellow, Plum, Teal, Khaki, Cream, Chocolate Brown, Lilac, B12-Black, C3-Blue, Rose Gold",
                ", ",
            )
        ),
    ),
    "size": ("Size", ("X-Small", "Small", "Medium", "Large", "X-Large", "XX-Large", "3X-Large")),
    "fit": ("Fit Type", ("Regular", "Slim", "Big/Tall")),
    "shoe": ("Size", ("5", "6", "7", "8", "8.5", "9", "9.5", "10", "11", "12 Wide")),
    "finish": ("Finish", ("Oak", "Walnut", "Espresso", "Whitewash", "Matte Black", "Antique Brass")),
    "tiers": ("Tiers", ("3-Tier", "4-Tier", "5-Tier")),
    "pillow": ("Size", ('16" x 16"', '18" x 18"', '20" x 20"', '12" x 20"')),
    "bed": ("Size", ("Twin", "Full", "Queen", "King", "California King")),
    "drop": ("Size", ("42W x 63L", "52W x 84L", "52W x 95L", "Standard")),
    "rug": ("Size", ("2x3 ft", "3x5 ft", "5x7 ft", "8x10 ft", "Runner/2x8 ft")),
    "basket": ("Size", ("Small", "Medium", "Large")),
    "pack": ("Size", ("Pack of 1", "Pack of 2", "Pack of 3", "Pack of 6", "Pack of 12")),
    "scent": ("Scent", ("Unscented", "Lavender", "Citrus Mint", "Sandalwood", "Vanilla Fig", "Green Tea")),
    "flavour": (
        "Flavor Name",
        ("Original", "Peanut Butter", "Dark Cherry", "Lemon Ginger", "Sea Salt", "Maple", "Mocha"),
    ),
    "roast": ("Roast", ("Light Roast", "Medium Roast", "Dark Roast", "Decaf")),
    "ounces": ("Size", ("4 Ounce", "8 Ounce", "12 Ounce (Pack of 2)", "16 Ounce", "32 Ounce")),
    "pieces": ("Size", ("6 Pieces", "10 Pieces", "12 Pieces", "24 Pieces")),
    "watts": ("Power", ("20W", "30W", "65W")),
    "kit": ("Style", ("1 Camera", "2 Camera Kit", "4 Camera Kit")),
    "inches": ("Size", ("For 26-42 inch", "For 37-70 inch", "For 50-86 inch")),
    "feet": ("Length", ("3 Feet", "6 Feet", "10 Feet", "25 Feet")),
}

SYLLABLES = _split(
    "ba bri cor da del el fen ga hal in jo ka kel lo lun mar mi nor o pa quil ra ren sol ta tri u ven wil zan"
)
STYLES = _split(
    "Modern Rustic Classic Vintage Nordic Coastal Urban Minimal Cozy Sporty Everyday Premium Bold Handmade"
)
MATERIALS = _split("Cotton Linen Bamboo Leather Oak Steel Ceramic Wool Canvas Glass Silk Cork Aloe Honey Oat Cocoa")
AUDIENCES = _split("Women Men Kids Travel Camping Office Gym Kitchen Bedroom Hallway Guests Students Runners Gifts")
OCCASIONS = _split(
    "birthdays, holidays, weddings, daily use, long trips, rainy days, lazy weekends, small rooms, busy mornings", ", "
)

# Words of a name that are not nouns; everything else in a name is one.
NOT_NOUNS = frozenset(
    _split(
        """
        modern rustic classic vintage nordic coastal urban minimal cozy sporty everyday premium bold handmade
        for with and in midi hooded woven deep outdoor wireless folding herbal ground portable easy quick slim
        loose elastic long short light non wide closed heavy solid space double super fade hidden wrinkle free
        sensitive dry natural damaged curly fast noise cancelling high plug dual ultra low based wrapped
        certified organic dried picked stable resistant soft sided friendly living dining machine washable hand
        """
    )
)

SENTENCES = (
    "The {brand} {title} was made for {occasion} and keeps its shape for years.",
    "We chose {material} because it is {trait} and pleasant to touch.",
    "Whether you plan {occasion} or {other}, this {noun} fits right in.",
    "Every {noun} is checked by hand before it leaves our workshop in lot {lot}.",
    "Customers praise how {trait} it is; tell us if yours is not and we replace it.",
    "Please compare the size chart with your own measures before you order.",
    "Model {code} comes with a card that explains care and returns.",
    "Measured on our bench it is {inches} inches long, weighs {grams} grams and carries batch number {lot}{grams}.",
    "Our {style} range pairs {material} with {second}, so the {noun} goes well with what you already own.",
    "If anything about your order is not {trait} or not {second_trait}, write to {brand} and we put it right.",
)
BULLETS = (
    "{trait_title}: made to be {trait}, also after many months of use. ",
    "Material: {material} with details in {second}. ",
    "A fine present for {occasion} and {other}. ",
    "What you get: one {noun} of the {style} series, code {code}. ",
    "Care: see the label; the {brand} team answers within two days. ",
    "★ {trait_title} and {second_trait} in one {noun} ★ ",
)
WISHES = (
    "i need {things} that are {traits}{options}",
    "please find {traits} {things}{options}",
    "looking for {things}, they should be {traits}{options}.",
    "can you get me some {things}{options}? they have to be {traits}",
)
